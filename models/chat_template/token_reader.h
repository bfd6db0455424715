#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/chat_template/lexer.h"
#include "models/chat_template/syntax_tree.h"

namespace shoal::jinja {

/// The tallest tree of a template. CPython refuses parentheses that are nested 200 deep.
inline constexpr int kMaxHeight = 150;

/// Walks through tokens and makes nodes, for the parsers. After the first error only the last token
/// is left, so that every loop of a parser ends, and what the parser returns is not used.
class TokenReader {
 public:
  TokenReader(std::vector<Token> tokens, std::vector<std::string>& names)
      : tokens_(std::move(tokens)), names_(names) {}

  const SyntaxError& error() const { return error_; }

 protected:
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool ok() const { return error_.ok(); }
  size_t token_index() const { return at_; }
  /// Whether one of the tokens from `begin` to the current one is this name.
  bool names_since(size_t begin, std::string_view name) const;
  void fail(std::string message, size_t at);
  void fail_here(std::string message) { fail(std::move(message), current().at); }

  bool sees_operator(std::string_view text) const {
    return current().kind == TokenKind::kOperator && current().text == text;
  }
  bool sees_name(std::string_view text) const {
    return current().kind == TokenKind::kName && current().text == text;
  }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string take_name();
  int intern(const std::string& name);
  static std::string described(const Token& token);

  static ExprPtr make(ExprKind kind, size_t at);
  /// Adds a child, which may be null, and checks the height.
  void adopt(Expr& parent, ExprPtr child);

  /// Counts how deeply the parser's own calls are nested, and fails if that is too deep.
  class Nesting {
   public:
    explicit Nesting(TokenReader& reader) : reader_(reader) {
      if (++reader_.depth_ > kMaxHeight) reader_.fail_here("the template is nested too deeply");
    }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ~Nesting() { --reader_.depth_; }

   private:
    TokenReader& reader_;
  };

  // Jinja2 refuses an unknown filter or test when it compiles the template, unless the name is in
  // an `if`: there it is an error only if it is reached. Names are therefore collected while they
  // are read, and an `if` takes those of its own frame out again. Loops, macros and the like begin
  // a new frame.
  struct UnknownName {
    std::string message;
    size_t at;
    int frame;
  };
  void add_unknown(std::string message, size_t at);
  size_t mark_unknown() const { return unknown_.size(); }
  void forgive_unknown(size_t mark);
  void fail_on_unknown();
  int frame_ = 0;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  SyntaxError error_;
  std::vector<UnknownName> unknown_;
  std::vector<std::string>& names_;
  std::unordered_map<std::string, int> known_names_;
};

}  // namespace shoal::jinja
