#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "models/chat_template/attributes.h"
#include "models/chat_template/syntax_tree.h"

namespace shoal::jinja {

/// The variables of a loop's round, a macro call, or the whole template. An inner scope sees the
/// variables of those around it and sets only its own.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;

  void set(int name, Value value);
};

/// Computes expressions.
class Evaluator {
 public:
  /// `variables` are those of the request and the model, by name.
  Evaluator(Run& run, const SyntaxTree& tree, const DictObject& variables);
  virtual ~Evaluator() = default;
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

 protected:
  Value evaluate(const Expr& expr);
  Value call(const Value& callee, const Arguments& arguments);
  virtual Value call_macro(const FunctionObject& function, const Arguments& arguments) = 0;
  /// Applies the filters of a filter block to its text.
  Value evaluate_filters(const Expr& filters, const Value& operand);
  Arguments evaluate_arguments(const CallSyntax& call);
  Value look_up(int name) const;

  /// Counts the depth of evaluation and restores the position, while it lives.
  class Frame {
   public:
    Frame(Run& run, size_t at);
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;
    ~Frame();

   private:
    Run& run_;
    size_t position_;
  };

  Run& run_;
  const SyntaxTree& tree_;
  std::shared_ptr<Scope> scope_;

 private:
  Value evaluate_node(const Expr& expr);
  Value evaluate_application(const Expr& expr);
  Value evaluate_binary(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  Value evaluate_slice(const Expr& expr);
  Value evaluate_filter(const Expr& expr);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs);

  std::vector<Value> context_;  // by name: what no scope has set
  const Value* filter_operand_ = nullptr;
};

}  // namespace shoal::jinja
