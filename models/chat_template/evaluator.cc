#include "models/chat_template/evaluator.h"

#include "models/chat_template/filters.h"
#include "models/chat_template/functions.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/spelling.h"
#include "models/chat_template/value_tests.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {

void Scope::set(int name, Value value) {
  for (auto& [known, old] : variables) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::Frame::Frame(Run& run, size_t at) : run_(run), position_(run.position) {
  run.position = at;
  if (++run.depth > run.limits().max_depth)
    run.fail(FailureKind::kLimit,
             cat("the template is evaluated more than ", run.limits().max_depth, " levels deep"));
}

Evaluator::Frame::~Frame() {
  run_.position = position_;
  --run_.depth;
}

Evaluator::Evaluator(Run& run, const SyntaxTree& tree, const DictObject& variables)
    : run_(run), tree_(tree), scope_(std::make_shared<Scope>()) {
  for (const std::string& name : tree.names) {
    if (const Value* given = variables.find(name)) {
      context_.push_back(*given);
    } else {
      context_.push_back(
          global_function(name).value_or(undefined_value(cat("'", name, "' is undefined"))));
    }
  }
}

Value Evaluator::look_up(int name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [known, value] : scope->variables)
      if (known == name) return value;
  }
  return context_[static_cast<size_t>(name)];
}

Value Evaluator::evaluate(const Expr& expr) {
  const Frame frame(run_, expr.at);
  if (!run_.step()) return {};
  Value value = evaluate_node(expr);
  if (run_.ok() && weight_of(value) > kMaxWeight)
    return run_.fail(FailureKind::kLimit, "a list or dict holds too many values");
  return run_.ok() ? value : Value();
}

Value Evaluator::evaluate_node(const Expr& expr) {
  const auto child = [&](size_t i) { return evaluate(*expr.children[i]); };
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return look_up(expr.name);
    case ExprKind::kTuple:
      return sequence_value(Type::kTuple, evaluate_all(expr.children));
    case ExprKind::kList:
      return sequence_value(Type::kList, evaluate_all(expr.children));
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kAttribute:
      return attribute_of(run_, child(0), expr.text);
    case ExprKind::kItem: {
      const Value value = child(0);
      return item_of(run_, value, child(1));
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr);
    case ExprKind::kBinary:
      return evaluate_binary(expr);
    case ExprKind::kConcat:
      return evaluate_concat(expr);
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    case ExprKind::kCondition:
      if (is_true(child(1))) return child(0);
      if (expr.children[2] != nullptr) return child(2);
      return undefined_value("the inline if-expression was false and has no else");
    default:
      return evaluate_application(expr);
  }
}

/// Calls, filters, tests and operators with one operand.
Value Evaluator::evaluate_application(const Expr& expr) {
  if (expr.kind == ExprKind::kFilter) return evaluate_filter(expr);
  const Value operand = evaluate(*expr.children[0]);
  if (expr.kind == ExprKind::kUnary) {
    if (expr.text == "not") return bool_value(!is_true(operand));
    return unary_operation(run_, expr.text, operand);
  }
  const Arguments arguments = evaluate_arguments(expr.call);
  if (!run_.ok()) return {};
  if (expr.kind == ExprKind::kCall) return call(operand, arguments);
  return bool_value(call_test(run_, expr.text, operand, arguments));
}

std::vector<Value> Evaluator::evaluate_all(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  for (const ExprPtr& expr : exprs) {
    if (!run_.ok()) break;
    values.push_back(evaluate(*expr));
  }
  return values;
}

Value Evaluator::evaluate_binary(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  if (expr.text == "and") return is_true(left) ? evaluate(*expr.children[1]) : left;
  if (expr.text == "or") return is_true(left) ? left : evaluate(*expr.children[1]);
  const Value right = evaluate(*expr.children[1]);
  return run_.ok() ? binary_operation(run_, expr.text, left, right) : Value();
}

Value Evaluator::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1]);
    if (!run_.ok()) return {};
    if (!compare(run_, expr.operators[i], left, right)) return bool_value(false);
    left = std::move(right);
  }
  return bool_value(true);
}

Value Evaluator::evaluate_concat(const Expr& expr) {
  Text text;
  for (const Value& value : evaluate_all(expr.children)) {
    if (!run_.ok()) return {};
    text.append(str_text(run_, value));
    if (text.size() > run_.limits().max_string_bytes) break;  // run_.string() refuses it
  }
  return run_.string(std::move(text));
}

Value Evaluator::evaluate_dict(const Expr& expr) {
  DictObject dict;
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    const Value key = evaluate(*expr.children[i]);
    if (!step_to_find(run_, dict, key)) return {};
    if (!is_hashable(key)) return run_.error(cat("unhashable type: '", type_name(key), "'"));
    dict.set(key, evaluate(*expr.children[i + 1]));
    if (!run_.ok()) return {};
  }
  return dict_value(std::move(dict));
}

Value Evaluator::evaluate_slice(const Expr& expr) {
  const Value value = evaluate(*expr.children[0]);
  Value bounds[3] = {none_value(), none_value(), none_value()};
  for (size_t i = 0; i < 3; ++i)
    if (expr.children[i + 1] != nullptr) bounds[i] = evaluate(*expr.children[i + 1]);
  return run_.ok() ? slice_of(run_, value, bounds[0], bounds[1], bounds[2]) : Value();
}

Value Evaluator::evaluate_filter(const Expr& expr) {
  const Value value = expr.children[0] == nullptr ? *filter_operand_ : evaluate(*expr.children[0]);
  const Arguments arguments = evaluate_arguments(expr.call);
  return run_.ok() ? call_filter(run_, expr.text, value, arguments) : Value();
}

Value Evaluator::evaluate_filters(const Expr& filters, const Value& operand) {
  const Value* const before = std::exchange(filter_operand_, &operand);
  Value value = evaluate(filters);
  filter_operand_ = before;
  return value;
}

Arguments Evaluator::evaluate_arguments(const CallSyntax& syntax) {
  Arguments arguments;
  arguments.positional = evaluate_all(syntax.positional);
  for (const auto& [name, expr] : syntax.keywords) {
    if (!run_.ok()) return arguments;
    arguments.keywords.emplace_back(name, evaluate(*expr));
  }
  if (syntax.star != nullptr) {
    for (Value& item : items_of(run_, evaluate(*syntax.star)))
      arguments.positional.push_back(std::move(item));
  }
  if (syntax.double_star != nullptr) {
    const Value more = evaluate(*syntax.double_star);
    if (run_.ok() && !more.is(Type::kDict)) run_.error("the argument after ** must be a mapping");
    if (!run_.ok()) return arguments;
    for (const auto& [key, value] : dict_of(more).items) {
      if (!key.is(Type::kString)) run_.error("keywords must be strings");
      if (!run_.ok()) return arguments;
      arguments.keywords.emplace_back(view_of(key), value);
    }
  }
  return arguments;
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  if (callee.is(Type::kUndefined)) return run_.error(undefined_reason(callee));
  if (!callee.is(Type::kFunction))
    return run_.error(cat("'", type_name(callee), "' object is not callable"));
  const auto& function = static_cast<const FunctionObject&>(*callee.object);
  return function.macro != nullptr ? call_macro(function, arguments)
                                   : call_function(run_, function, arguments);
}

}  // namespace shoal::jinja
