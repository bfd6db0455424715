#include "models/chat_template/interpreter.h"

#include <algorithm>
#include <optional>

#include "models/chat_template/evaluator.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/spelling.h"
#include "runtime/base/cat.h"
#include "runtime/base/counted.h"

namespace shoal::jinja {
namespace {

/// A macro, or the body of a call block, with the scope in which it was defined.
struct MacroObject : Object {
  const Stmt* definition = nullptr;
  std::shared_ptr<Scope> closure;
};

class Interpreter : public Evaluator {
 public:
  using Evaluator::Evaluator;
  ~Interpreter() override {
    // A macro holds its scope, and the scope the macro.
    for (const auto& scope : closures_) scope->variables.clear();
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Text render() {
    Text text;
    out_ = &text;
    loop_name_ = name_index("loop");
    special_names_ = {name_index("varargs"), name_index("kwargs"), name_index("caller")};
    run_block(tree_.body);
    return text;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  int name_index(std::string_view name) const {
    const auto found = std::find(tree_.names.begin(), tree_.names.end(), name);
    return found == tree_.names.end() ? -1 : static_cast<int>(found - tree_.names.begin());
  }

  Flow run_block(const Block& block) {
    for (const StmtPtr& stmt : block) {
      const Frame frame(run_, stmt->at);
      if (!run_.step()) return Flow::kBreak;
      const Flow flow = run_statement(*stmt);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  /// The same with variables of its own.
  Flow run_scoped(const Block& block, std::shared_ptr<Scope> scope) {
    std::swap(scope_, scope);
    const Flow flow = run_block(block);
    std::swap(scope_, scope);
    return flow;
  }

  std::shared_ptr<Scope> inner_scope() const {
    auto scope = std::make_shared<Scope>();
    scope->parent = scope_;
    return scope;
  }

  /// The text that a block prints.
  Text captured(const Block& block, std::shared_ptr<Scope> scope) {
    Text text;
    Text* const before = std::exchange(out_, &text);
    run_scoped(block, std::move(scope));
    out_ = before;
    return text;
  }

  void print(const Text& text) {
    out_->append(text);
    if (out_->size() > run_.limits().max_output_bytes)
      run_.fail(FailureKind::kLimit,
                cat("the text has more than ", run_.limits().max_output_bytes, " bytes"));
    run_.step(text.size() / 256);
  }

  Flow run_statement(const Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::kText:
        print(text_of(stmt.text));
        break;
      case StmtKind::kPrint:
        print(str_text(run_, evaluate(*stmt.exprs[0])));
        break;
      case StmtKind::kIf:
        return run_if(stmt);
      case StmtKind::kFor:
        return run_for(stmt);
      case StmtKind::kSet:
        assign(*stmt.target, evaluate(*stmt.exprs[0]));
        break;
      case StmtKind::kSetBlock:
        set_block(stmt);
        break;
      case StmtKind::kMacro:
        scope_->set(stmt.target->name, new_macro(stmt));
        break;
      case StmtKind::kCallBlock:
        run_call_block(stmt);
        break;
      case StmtKind::kFilterBlock:
        filter_block(stmt);
        break;
      case StmtKind::kWith:
        return run_with(stmt);
      case StmtKind::kGeneration:
        return run_scoped(stmt.blocks[0], inner_scope());
      case StmtKind::kBreak:
        return Flow::kBreak;
      case StmtKind::kContinue:
        return Flow::kContinue;
    }
    return run_.ok() ? Flow::kNext : Flow::kBreak;
  }

  void set_block(const Stmt& stmt) {
    const Value text = run_.string(captured(stmt.blocks[0], inner_scope()));
    assign(*stmt.target, stmt.exprs[0] == nullptr ? text : evaluate_filters(*stmt.exprs[0], text));
  }

  void filter_block(const Stmt& stmt) {
    const Value text = run_.string(captured(stmt.blocks[0], inner_scope()));
    print(str_text(run_, evaluate_filters(*stmt.exprs[0], text)));
  }

  Flow run_if(const Stmt& stmt) {
    for (size_t i = 0; i < stmt.exprs.size(); ++i) {
      const bool truth = is_true(evaluate(*stmt.exprs[i]));
      if (!run_.ok()) return Flow::kBreak;
      if (truth) return run_block(stmt.blocks[i]);
    }
    return stmt.blocks.size() > stmt.exprs.size() ? run_block(stmt.blocks.back()) : Flow::kNext;
  }

  Flow run_with(const Stmt& stmt) {
    const std::shared_ptr<Scope> scope = inner_scope();
    for (const Parameter& parameter : stmt.parameters) {
      const Value value = evaluate(*parameter.fallback);
      if (!run_.ok()) return Flow::kBreak;
      assign_in(*scope, *parameter.target, value);
    }
    return run_scoped(stmt.blocks[0], scope);
  }

  /// The items of a loop for which its condition is true.
  std::vector<Value> chosen_items(const Stmt& stmt) {
    std::vector<Value> items = items_of(run_, evaluate(*stmt.exprs[0]));
    if (stmt.exprs[1] == nullptr) return items;
    std::vector<Value> chosen;
    for (Value& item : items) {
      const std::shared_ptr<Scope> outer = scope_;
      scope_ = inner_scope();
      assign(*stmt.target, item);
      if (loop_name_ >= 0)
        scope_->set(loop_name_, undefined_value("'loop' is undefined in the filter of a loop"));
      const bool truth = run_.ok() && is_true(evaluate(*stmt.exprs[1]));
      scope_ = outer;
      if (!run_.step()) return {};
      if (truth) chosen.push_back(std::move(item));
    }
    return chosen;
  }

  Flow run_for(const Stmt& stmt) {
    auto loop = std::make_shared<LoopObject>();
    loop->items = chosen_items(stmt);
    if (!run_.ok()) return Flow::kBreak;
    if (loop->items.empty()) return run_scoped(stmt.blocks[1], inner_scope());
    Value loop_value;
    loop_value.type = Type::kLoop;
    loop_value.object = loop;
    for (; loop->index < loop->items.size(); ++loop->index) {
      const std::shared_ptr<Scope> scope = inner_scope();
      assign_in(*scope, *stmt.target, loop->items[loop->index]);
      if (loop_name_ >= 0 && !targets_loop(*stmt.target)) scope->set(loop_name_, loop_value);
      if (!run_.step()) return Flow::kBreak;
      if (run_scoped(stmt.blocks[0], scope) == Flow::kBreak) break;
    }
    return run_.ok() ? Flow::kNext : Flow::kBreak;
  }

  bool targets_loop(const Expr& target) const {
    return target.kind == ExprKind::kName && target.name == loop_name_;
  }

  void assign(const Expr& target, const Value& value) { assign_in(*scope_, target, value); }

  void assign_in(Scope& scope, const Expr& target, const Value& value) {
    if (!run_.ok()) return;
    if (target.kind == ExprKind::kName) return scope.set(target.name, value);
    if (target.kind == ExprKind::kAttribute) return assign_attribute(target, value);
    const std::vector<Value> items = items_of(run_, value);
    if (run_.ok() && items.size() != target.children.size()) {
      run_.error(cat("cannot unpack ", counted(items.size(), "value"), " into ",
                     counted(target.children.size(), "name")));
    }
    for (size_t i = 0; i < target.children.size() && run_.ok(); ++i)
      assign_in(scope, *target.children[i], items[i]);
  }

  void assign_attribute(const Expr& target, const Value& value) {
    const Value space = look_up(target.children[0]->name);
    if (!space.is(Type::kNamespace)) {
      run_.error("cannot assign an attribute on an object that is not a namespace");
    } else if (target.text.starts_with('_')) {
      run_.error("a namespace cannot have an attribute that begins with an underscore");
    } else if (nesting_of(value) >= kMaxNesting) {
      run_.fail(FailureKind::kLimit, "a list is nested too deeply");
    } else {
      namespace_of(space).attributes.set(constant_string(Text(target.text, false)), value);
    }
  }

  Value new_macro(const Stmt& stmt) {
    auto macro = std::make_shared<MacroObject>();
    macro->definition = &stmt;
    macro->closure = scope_;
    // The scope is kept until the end, so that this costs more than other statements.
    run_.step(100);
    if (closures_.empty() || closures_.back() != scope_) closures_.push_back(scope_);
    Value value = function_value(stmt.target == nullptr ? "caller" : stmt.target->text);
    static_cast<FunctionObject&>(*value.object).macro = std::move(macro);
    return value;
  }

  void run_call_block(const Stmt& stmt) {
    const Expr& expr = *stmt.exprs[0];
    const Value callee = evaluate(*expr.children[0]);
    Arguments arguments = evaluate_arguments(expr.call);
    arguments.keywords.emplace_back("caller", new_macro(stmt));
    if (run_.ok()) print(str_text(run_, call(callee, arguments)));
  }

  Value call_macro(const FunctionObject& function, const Arguments& arguments) override {
    const auto& macro = static_cast<const MacroObject&>(*function.macro);
    const Frame frame(run_, run_.position);
    auto scope = std::make_shared<Scope>();
    scope->parent = macro.closure;
    std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
    bind_arguments(function.name, *macro.definition, arguments);
    Text text;
    if (run_.ok()) text = captured(macro.definition->blocks[0], scope);
    scope_ = std::move(outer);
    return run_.ok() ? run_.string(std::move(text)) : Value();
  }

  /// Sets the parameters of a macro in the current scope.
  void bind_arguments(const std::string& name, const Stmt& stmt, const Arguments& arguments) {
    std::vector<std::pair<std::string, Value>> keywords = arguments.keywords;
    const auto take_keyword = [&](const std::string& wanted) -> std::optional<Value> {
      const auto found = std::find_if(keywords.begin(), keywords.end(),
                                      [&](const auto& row) { return row.first == wanted; });
      if (found == keywords.end()) return std::nullopt;
      Value value = found->second;
      keywords.erase(found);
      return value;
    };
    for (size_t i = 0; i < stmt.parameters.size() && run_.ok(); ++i) {
      const Parameter& parameter = stmt.parameters[i];
      std::optional<Value> given;
      if (i < arguments.positional.size()) {
        given = arguments.positional[i];
      } else {
        given = take_keyword(parameter.target->text);
      }
      if (!given) given = fallback_of(parameter);
      scope_->set(parameter.target->name, *given);
    }
    if (stmt.uses_caller) {
      scope_->set(special_names_.caller,
                  take_keyword("caller").value_or(undefined_value("no caller is defined")));
    }
    bind_rest(name, stmt, arguments, keywords);
  }

  Value fallback_of(const Parameter& parameter) {
    if (parameter.fallback != nullptr) return evaluate(*parameter.fallback);
    return undefined_value(cat("parameter '", parameter.target->text, "' was not provided"));
  }

  /// Binds the arguments that are left when every parameter has one.
  void bind_rest(const std::string& name, const Stmt& stmt, const Arguments& arguments,
                 const std::vector<std::pair<std::string, Value>>& keywords) {
    const size_t count = std::min(stmt.parameters.size(), arguments.positional.size());
    if (stmt.uses_kwargs) {
      DictObject dict;
      for (const auto& [key, value] : keywords) dict.set(run_.string(key), value);
      scope_->set(special_names_.kwargs, dict_value(std::move(dict)));
    } else if (!keywords.empty()) {
      run_.error(cat("the macro '", name, "' takes no keyword argument '", keywords[0].first, "'"));
    }
    if (stmt.uses_varargs) {
      scope_->set(special_names_.varargs,
                  sequence_value(Type::kTuple,
                                 {arguments.positional.begin() + static_cast<std::ptrdiff_t>(count),
                                  arguments.positional.end()}));
    } else if (arguments.positional.size() > count) {
      run_.error(cat("the macro '", name, "' takes not more than ", counted(count, "argument")));
    }
  }

  struct SpecialNames {
    int varargs = -1;
    int kwargs = -1;
    int caller = -1;
  };

  Text* out_ = nullptr;
  int loop_name_ = -1;
  SpecialNames special_names_;
  std::vector<std::shared_ptr<Scope>> closures_;
};

}  // namespace

Text interpret(Run& run, const SyntaxTree& tree, const DictObject& variables) {
  return Interpreter(run, tree, variables).render();
}

}  // namespace shoal::jinja
