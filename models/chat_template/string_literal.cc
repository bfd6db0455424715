#include "models/chat_template/string_literal.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "models/tokenizer/unicode.h"

namespace shoal::jinja {
namespace {

constexpr std::string_view kLetters = "abfnrtv\\'\"";
constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

/// Reads the escape behind the backslash at literal[at - 1], and returns the byte behind it.
Result<size_t, LiteralError> numeric_escape(std::string_view literal, size_t at, std::string& out) {
  const char kind = literal[at];
  size_t begin = at + 1, end = begin;
  int base = 16;
  if (is_octal(kind)) {
    begin = at;
    base = 8;
    while (end < literal.size() && end < at + 3 && is_octal(literal[end])) ++end;
  } else {
    end = begin + (kind == 'x' ? 2 : kind == 'u' ? 4 : 8);
  }
  uint32_t value = 0;
  const char* const last = literal.data() + std::min(end, literal.size());
  const auto [rest, error] = std::from_chars(literal.data() + begin, last, value, base);
  if (error != std::errc() || rest != last || end > literal.size())
    return LiteralError{"an escape in a string is cut short"};
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
    return LiteralError{"an escape in a string names no character"};
  append_utf8(value, out);
  return end;
}

}  // namespace

Result<std::string, LiteralError> unescape(std::string_view literal) {
  std::string out;
  for (size_t at = 0; at < literal.size();) {
    const char c = literal[at++];
    if (c != '\\' || at >= literal.size()) {
      out += c;
      continue;
    }
    const char kind = literal[at];
    if (kind == '\n') {
      ++at;
    } else if (const size_t known = kLetters.find(kind); known != std::string_view::npos) {
      out += kMeanings[known];
      ++at;
    } else if (kind == 'x' || kind == 'u' || kind == 'U' || is_octal(kind)) {
      SHOAL_ASSIGN_OR_RETURN(at, numeric_escape(literal, at, out));
    } else if (kind == 'N') {
      return LiteralError{"names of characters (\\N) are not supported"};
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace shoal::jinja
