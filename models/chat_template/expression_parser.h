#pragma once
#include <initializer_list>
#include <string_view>

#include "models/chat_template/token_reader.h"

namespace shoal::jinja {

/// Reads expressions, with Jinja2's precedence. No function returns null.
class ExpressionParser : public TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  enum class Condition { kAllowed, kNotAllowed };
  ExprPtr parse_expression(Condition condition = Condition::kAllowed);
  /// One expression, or several with commas between them, up to the end of the tag or `end`.
  ExprPtr parse_tuple(Condition condition = Condition::kAllowed, std::string_view end = {},
                      bool in_parentheses = false);
  /// The filters behind an expression, which is null in a filter block. With start_inline the first
  /// has no bar.
  ExprPtr parse_filters(ExprPtr operand, bool start_inline);
  bool ends_tuple(std::string_view end) const;

 private:
  ExprPtr parse_condition();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_name_or_constant();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr operand);
  ExprPtr parse_filter_or_test(ExprPtr operand);
  ExprPtr parse_subscript(ExprPtr operand);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_test(ExprPtr operand);
  void parse_arguments(Expr& call);
  ExprPtr binary(std::string_view op, ExprPtr left, ExprPtr right);
  using Rule = ExprPtr (ExpressionParser::*)();
  ExprPtr left_to_right(std::initializer_list<std::string_view> operators, Rule operand);
  bool begins_test_argument() const;
};

}  // namespace shoal::jinja
