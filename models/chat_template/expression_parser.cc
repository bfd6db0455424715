#include "models/chat_template/expression_parser.h"

#include <algorithm>

#include "models/chat_template/filters.h"
#include "models/chat_template/value_tests.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {

ExprPtr ExpressionParser::binary(std::string_view op, ExprPtr left, ExprPtr right) {
  ExprPtr expr = make(ExprKind::kBinary, left->at);
  expr->text = op;
  adopt(*expr, std::move(left));
  adopt(*expr, std::move(right));
  return expr;
}

ExprPtr ExpressionParser::parse_expression(Condition condition) {
  // Every nesting of the syntax passes through here, through parse_not or through parse_unary.
  const Nesting nesting(*this);
  return condition == Condition::kAllowed ? parse_condition() : parse_or();
}

ExprPtr ExpressionParser::parse_condition() {
  const size_t mark = mark_unknown();
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr expr = make(ExprKind::kCondition, value->at);
    ExprPtr guard = parse_or();
    ExprPtr other = skip_name("else") ? parse_expression() : nullptr;
    adopt(*expr, std::move(value));
    adopt(*expr, std::move(guard));
    adopt(*expr, std::move(other));
    value = std::move(expr);
    forgive_unknown(mark);
  }
  return value;
}

ExprPtr ExpressionParser::left_to_right(std::initializer_list<std::string_view> operators,
                                        Rule operand) {
  ExprPtr left = (this->*operand)();
  while (ok()) {
    const Token& token = current();
    const auto op = std::find(operators.begin(), operators.end(), token.text);
    const bool is_word = token.kind == TokenKind::kName;
    if (op == operators.end() || (!is_word && token.kind != TokenKind::kOperator)) break;
    advance();
    left = binary(*op, std::move(left), (this->*operand)());
  }
  return left;
}

ExprPtr ExpressionParser::parse_or() {
  return left_to_right({"or"}, &ExpressionParser::parse_and);
}

ExprPtr ExpressionParser::parse_and() {
  return left_to_right({"and"}, &ExpressionParser::parse_not);
}

ExprPtr ExpressionParser::parse_not() {
  if (!sees_name("not")) return parse_compare();
  ExprPtr expr = make(ExprKind::kUnary, current().at);
  expr->text = "not";
  advance();
  const Nesting nesting(*this);
  adopt(*expr, parse_not());
  return expr;
}

ExprPtr ExpressionParser::parse_compare() {
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  ExprPtr expr = make(ExprKind::kCompare, current().at);
  adopt(*expr, parse_sum());
  while (ok()) {
    const bool is_operator = current().kind == TokenKind::kOperator &&
                             std::find(std::begin(kOperators), std::end(kOperators),
                                       current().text) != std::end(kOperators);
    const bool is_not_in =
        sees_name("not") && look().kind == TokenKind::kName && look().text == "in";
    if (!is_operator && !is_not_in && !sees_name("in")) break;
    if (is_not_in) advance();
    expr->operators.push_back(is_not_in ? "not in" : current().text);
    advance();
    adopt(*expr, parse_sum());
  }
  return expr->operators.empty() ? std::move(expr->children[0]) : std::move(expr);
}

ExprPtr ExpressionParser::parse_sum() {
  return left_to_right({"+", "-"}, &ExpressionParser::parse_concat);
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_product();
  if (!sees_operator("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat, first->at);
  adopt(*expr, std::move(first));
  while (skip_operator("~")) adopt(*expr, parse_product());
  return expr;
}

ExprPtr ExpressionParser::parse_product() {
  return left_to_right({"*", "/", "//", "%"}, &ExpressionParser::parse_power);
}

ExprPtr ExpressionParser::parse_power() {
  // From left to right, unlike Python.
  ExprPtr left = parse_unary(true);
  while (skip_operator("**")) left = binary("**", std::move(left), parse_unary(true));
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
  ExprPtr expr;
  if (sees_operator("-") || sees_operator("+")) {
    expr = make(ExprKind::kUnary, current().at);
    expr->text = current().text;
    advance();
    const Nesting nesting(*this);
    adopt(*expr, parse_unary(false));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filter ? parse_filter_or_test(std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::parse_name_or_constant() {
  const Token& token = current();
  const std::string& name = token.text;
  ExprPtr expr = make(ExprKind::kConstant, token.at);
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr->constant = bool_value(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expr->constant = none_value();
  } else {
    expr->kind = ExprKind::kName;
    expr->text = name;
    expr->name = intern(name);
  }
  advance();
  return expr;
}

ExprPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  ExprPtr expr = make(ExprKind::kConstant, token.at);
  switch (token.kind) {
    case TokenKind::kName:
      return parse_name_or_constant();
    case TokenKind::kString: {
      std::string text;
      for (; current().kind == TokenKind::kString; advance()) text += current().text;
      expr->constant = constant_string(Text(std::move(text), false));
      return expr;
    }
    case TokenKind::kInteger:
      expr->constant = int_value(token.integer);
      advance();
      return expr;
    case TokenKind::kFloat:
      expr->constant = float_value(token.number);
      advance();
      return expr;
    default:
      break;
  }
  if (sees_operator("[")) return parse_list();
  if (sees_operator("{")) return parse_dict();
  if (skip_operator("(")) {
    expr = parse_tuple(Condition::kAllowed, {}, true);
    expect_operator(")");
    return expr;
  }
  fail_here(cat("unexpected ", described(token)));
  return expr;
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr list = make(ExprKind::kList, current().at);
  expect_operator("[");
  while (ok() && !sees_operator("]")) {
    if (!list->children.empty()) expect_operator(",");
    if (sees_operator("]")) break;
    adopt(*list, parse_expression());
  }
  expect_operator("]");
  return list;
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict, current().at);
  expect_operator("{");
  while (ok() && !sees_operator("}")) {
    if (!dict->children.empty()) expect_operator(",");
    if (sees_operator("}")) break;
    adopt(*dict, parse_expression());
    expect_operator(":");
    adopt(*dict, parse_expression());
  }
  expect_operator("}");
  return dict;
}

bool ExpressionParser::ends_tuple(std::string_view end) const {
  return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
         sees_operator(")") || (!end.empty() && sees_name(end));
}

ExprPtr ExpressionParser::parse_tuple(Condition condition, std::string_view end,
                                      bool in_parentheses) {
  ExprPtr tuple = make(ExprKind::kTuple, current().at);
  bool has_comma = false;
  while (ok() && !ends_tuple(end)) {
    adopt(*tuple, parse_expression(condition));
    if (!skip_operator(",")) break;
    has_comma = true;
  }
  if (!has_comma && !tuple->children.empty()) return std::move(tuple->children[0]);
  if (!has_comma && !in_parentheses)
    fail_here(cat("expected an expression, got ", described(current())));
  return tuple;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr operand) {
  while (ok()) {
    if (sees_operator(".") || sees_operator("[")) {
      operand = parse_subscript(std::move(operand));
    } else if (sees_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      break;
    }
  }
  return operand;
}

ExprPtr ExpressionParser::parse_filter_or_test(ExprPtr operand) {
  while (ok()) {
    if (sees_operator("|")) {
      operand = parse_filters(std::move(operand), false);
    } else if (sees_name("is")) {
      operand = parse_test(std::move(operand));
    } else if (sees_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      break;
    }
  }
  return operand;
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr operand) {
  ExprPtr expr = make(ExprKind::kItem, operand->at);
  if (skip_operator(".")) {
    if (current().kind == TokenKind::kInteger) {
      ExprPtr index = make(ExprKind::kConstant, current().at);
      index->constant = int_value(current().integer);
      advance();
      adopt(*expr, std::move(operand));
      adopt(*expr, std::move(index));
      return expr;
    }
    expr->kind = ExprKind::kAttribute;
    adopt(*expr, std::move(operand));
    expr->text = take_name();
    return expr;
  }
  expect_operator("[");
  adopt(*expr, std::move(operand));
  ExprPtr index = sees_operator(":") ? nullptr : parse_expression();
  if (sees_operator(":")) {
    expr->kind = ExprKind::kSlice;
    adopt(*expr, std::move(index));
    for (int bound = 0; bound < 2; ++bound) {
      const bool given = skip_operator(":") && !sees_operator(":") && !sees_operator("]");
      adopt(*expr, given ? parse_expression() : nullptr);
    }
  } else {
    adopt(*expr, std::move(index));
  }
  expect_operator("]");
  return expr;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr call = make(ExprKind::kCall, callee->at);
  adopt(*call, std::move(callee));
  parse_arguments(*call);
  return call;
}

void ExpressionParser::parse_arguments(Expr& call) {
  CallSyntax& syntax = call.call;
  const auto keep = [&](ExprPtr argument) {
    call.height = std::max(call.height, argument->height + 1);
    return argument;
  };
  const auto check = [&](bool allowed) {
    if (!allowed) fail_here("the arguments of a call are in the wrong order");
  };
  expect_operator("(");
  for (bool is_first = true; ok() && !sees_operator(")"); is_first = false) {
    if (!is_first) expect_operator(",");
    if (sees_operator(")")) break;
    if (skip_operator("*")) {
      check(syntax.star == nullptr && syntax.double_star == nullptr);
      syntax.star = keep(parse_expression());
    } else if (skip_operator("**")) {
      check(syntax.double_star == nullptr);
      syntax.double_star = keep(parse_expression());
    } else if (current().kind == TokenKind::kName && look().kind == TokenKind::kOperator &&
               look().text == "=") {
      check(syntax.double_star == nullptr);
      std::string name = take_name();
      advance();
      syntax.keywords.emplace_back(std::move(name), keep(parse_expression()));
    } else {
      check(syntax.star == nullptr && syntax.double_star == nullptr && syntax.keywords.empty());
      syntax.positional.push_back(keep(parse_expression()));
    }
  }
  expect_operator(")");
  if (call.height > kMaxHeight) fail("an expression is nested too deeply", call.at);
}

ExprPtr ExpressionParser::parse_filters(ExprPtr operand, bool start_inline) {
  while (ok() && (start_inline || skip_operator("|"))) {
    start_inline = false;
    ExprPtr filter = make(ExprKind::kFilter, current().at);
    filter->text = take_name();
    if (!is_filter(filter->text))
      add_unknown(cat("there is no filter named '", filter->text, "'"), filter->at);
    adopt(*filter, std::move(operand));
    if (sees_operator("(")) parse_arguments(*filter);
    operand = std::move(filter);
  }
  return operand;
}

bool ExpressionParser::begins_test_argument() const {
  switch (current().kind) {
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    case TokenKind::kName:
      return !sees_name("else") && !sees_name("or") && !sees_name("and");
    default:
      return sees_operator("[") || sees_operator("{");
  }
}

ExprPtr ExpressionParser::parse_test(ExprPtr operand) {
  const size_t at = current().at;
  expect_name("is");
  const bool is_negated = skip_name("not");
  ExprPtr test = make(ExprKind::kTest, at);
  test->text = take_name();
  if (!is_test(test->text)) add_unknown(cat("there is no test named '", test->text, "'"), at);
  adopt(*test, std::move(operand));
  if (sees_operator("(")) {
    parse_arguments(*test);
  } else if (ok() && begins_test_argument()) {
    if (sees_name("is")) fail_here("tests cannot be chained with 'is'");
    test->call.positional.push_back(parse_postfix(parse_primary()));
    test->height = std::max(test->height, test->call.positional[0]->height + 1);
  }
  if (!is_negated) return test;
  ExprPtr negated = make(ExprKind::kUnary, at);
  negated->text = "not";
  adopt(*negated, std::move(test));
  return negated;
}

}  // namespace shoal::jinja
