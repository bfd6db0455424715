#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal::jinja {

/// A place in a template. Lines and columns count from 1; a column counts characters.
struct Place {
  size_t line = 1;
  size_t column = 1;
};
Place place_of(std::string_view source, size_t byte);

/// Why a template cannot be used: what is wrong, and the byte at which it was noticed.
struct SyntaxError {
  std::string message;
  size_t at = 0;
  bool ok() const { return message.empty(); }
};

enum class TokenKind {
  kData,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  ///< the text says which
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  ///< data, a name, an operator, or the string without quotes and escapes
  int64_t integer = 0;
  double number = 0;
  size_t at = 0;  ///< byte in the source
};

/// The source as Jinja2 sees it: newlines are \n, and one newline at the end is left out.
std::string normalized_source(std::string_view source);

/// Cuts a normalized template into tokens as Jinja2 does with trim_blocks and lstrip_blocks. The
/// last token is kEnd.
Result<std::vector<Token>, SyntaxError> tokenize(std::string_view source);

}  // namespace shoal::jinja
