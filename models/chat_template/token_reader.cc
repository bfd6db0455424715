#include "models/chat_template/token_reader.h"

#include <algorithm>

#include "runtime/base/cat.h"

namespace shoal::jinja {

void TokenReader::fail(std::string message, size_t at) {
  if (ok()) error_ = {std::move(message), at};
  at_ = tokens_.size() - 1;
}

bool TokenReader::names_since(size_t begin, std::string_view name) const {
  for (size_t i = begin; i < at_; ++i)
    if (tokens_[i].kind == TokenKind::kName && tokens_[i].text == name) return true;
  return false;
}

bool TokenReader::skip_operator(std::string_view text) {
  if (!sees_operator(text)) return false;
  advance();
  return true;
}

bool TokenReader::skip_name(std::string_view text) {
  if (!sees_name(text)) return false;
  advance();
  return true;
}

void TokenReader::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail_here(cat("expected '", text, "', got ", described(current())));
}

void TokenReader::expect_name(std::string_view text) {
  if (!skip_name(text)) fail_here(cat("expected '", text, "', got ", described(current())));
}

std::string TokenReader::take_name() {
  if (current().kind != TokenKind::kName)
    fail_here(cat("expected a name, got ", described(current())));
  std::string name = current().text;
  advance();
  return name;
}

int TokenReader::intern(const std::string& name) {
  const auto [known, is_new] = known_names_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) names_.push_back(name);
  return known->second;
}

std::string TokenReader::described(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    default:
      return cat("'", token.text, "'");
  }
}

ExprPtr TokenReader::make(ExprKind kind, size_t at) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->at = at;
  return expr;
}

void TokenReader::adopt(Expr& parent, ExprPtr child) {
  if (child != nullptr) parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > kMaxHeight) fail("an expression is nested too deeply", parent.at);
  parent.children.push_back(std::move(child));
}

void TokenReader::add_unknown(std::string message, size_t at) {
  if (ok()) unknown_.push_back({std::move(message), at, frame_});
}

void TokenReader::forgive_unknown(size_t mark) {
  const auto first = unknown_.begin() + static_cast<std::ptrdiff_t>(mark);
  unknown_.erase(std::remove_if(first, unknown_.end(),
                                [&](const UnknownName& name) { return name.frame == frame_; }),
                 unknown_.end());
}

void TokenReader::fail_on_unknown() {
  if (!unknown_.empty()) fail(unknown_[0].message, unknown_[0].at);
}

}  // namespace shoal::jinja
