#include "models/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "models/chat_template/string_literal.h"
#include "models/chat_template/text.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

// Longer operators come first.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>, SyntaxError> run() {
    while (at_ < source_.size() && error_.ok()) root();
    if (!error_.ok()) return error_;
    add(TokenKind::kEnd, at_);
    return std::move(tokens_);
  }

 private:
  bool sees(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  void fail(std::string message, size_t at) {
    if (error_.ok()) error_ = {std::move(message), at};
  }
  Token& add(TokenKind kind, size_t at, std::string_view text = {}) {
    tokens_.push_back({kind, std::string(text), 0, 0, at});
    return tokens_.back();
  }
  void skip_spaces() { at_ += skip_space(source_.substr(at_)); }

  /// Adds the text in front of a tag. The tag's sign, or lstrip_blocks, shortens it.
  void add_data(size_t begin, size_t end, char sign, bool is_variable) {
    std::string_view text = source_.substr(begin, end - begin);
    if (sign == '-') {
      text = text.substr(0, skip_space_at_end(text));
    } else if (sign != '+' && !is_variable) {
      const size_t line = text.rfind('\n') + 1;  // 0 if there is none
      if ((line > 0 || line_starts_) && skip_space(text.substr(line)) == text.size() - line)
        text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::kData, begin, text);
  }

  /// Reads the sign behind the beginning of a tag.
  char take_sign() {
    if (!sees("-") && !sees("+")) return 0;
    return source_[at_++];
  }

  void root() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        add(TokenKind::kData, begin, source_.substr(begin));
        at_ = source_.size();
        return;
      }
      const char next = source_[tag + 1];
      if (next == '%' || next == '{' || next == '#') break;
    }
    at_ = tag + 2;
    const char kind = source_[tag + 1];
    const char sign = take_sign();
    add_data(begin, tag, sign, kind == '{');
    line_starts_ = false;
    if (kind == '#') return comment(tag);
    if (kind == '%' && raw_begins()) return raw(tag);
    add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, tag);
    inside(kind == '%', tag);
  }

  /// After "{%": consumes the rest of a tag `raw`, if it is one.
  bool raw_begins() {
    const size_t before = at_;
    skip_spaces();
    if (sees("raw")) {
      at_ += 3;
      skip_spaces();
      if (sees("-%}")) {
        at_ += 3;
        skip_spaces();
        line_starts_ = source_[at_ - 1] == '\n';
        return true;
      }
      if (sees("%}")) {
        at_ += 2;
        return true;
      }
    }
    at_ = before;
    return false;
  }

  /// Consumes the end of a block or comment: its sign, its two characters, and what is trimmed.
  bool take_end(std::string_view mark) {
    const size_t before = at_;
    const char sign = take_sign();
    if (!sees(mark)) {
      at_ = before;
      return false;
    }
    at_ += mark.size();
    if (sign == '-') {
      skip_spaces();
    } else if (sign == 0 && sees("\n")) {
      ++at_;
    }
    line_starts_ = source_[at_ - 1] == '\n';
    return true;
  }

  void comment(size_t tag) {
    for (; at_ < source_.size(); ++at_)
      if (take_end("#}")) return;
    fail("Missing end of comment tag", tag);
  }

  void raw(size_t tag) {
    const size_t begin = at_;
    for (; at_ < source_.size(); ++at_) {
      const size_t end = at_;
      if (!sees("{%")) continue;
      at_ += 2;
      const char sign = take_sign();
      skip_spaces();
      if (sees("endraw")) {
        at_ += 6;
        skip_spaces();
        const size_t text = tokens_.size();
        add_data(begin, end, sign, false);
        if (take_end("%}")) return;
        tokens_.resize(text);
      }
      at_ = end;
    }
    fail("Missing end of raw directive", tag);
  }

  /// The tokens up to the end of a tag.
  void inside(bool is_block, size_t tag) {
    while (error_.ok()) {
      if (brackets_.empty() && take_tag_end(is_block)) return;
      const size_t before = at_;
      skip_spaces();
      if (at_ != before) continue;
      if (at_ >= source_.size()) {
        return fail(
            is_block ? "the template ends inside {% ... %}" : "the template ends inside {{ ... }}",
            tag);
      }
      one_token();
    }
  }

  bool take_tag_end(bool is_block) {
    const size_t at = at_;
    if (is_block) {
      if (!take_end("%}")) return false;
      add(TokenKind::kBlockEnd, at);
      return true;
    }
    if (!sees("}}") && !sees("-}}")) return false;
    const bool trims = sees("-");
    at_ += trims ? 3 : 2;
    if (trims) skip_spaces();
    line_starts_ = source_[at_ - 1] == '\n';
    add(TokenKind::kVariableEnd, at);
    return true;
  }

  void one_token() {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string();
    if (is_word(code_point_at(source_, at_).value)) return name();
    for (const std::string_view op : kOperators) {
      if (!sees(op)) continue;
      add(TokenKind::kOperator, at_, op);
      if (!balance(op)) return;
      at_ += op.size();
      return;
    }
    fail(cat("unexpected character '", source_.substr(at_, code_point_at(source_, at_).bytes), "'"),
         at_);
  }

  bool balance(std::string_view op) {
    if (op == "{") brackets_ += '}';
    if (op == "(") brackets_ += ')';
    if (op == "[") brackets_ += ']';
    if (op != "}" && op != ")" && op != "]") return true;
    if (brackets_.empty()) {
      fail(cat("unexpected '", op, "'"), at_);
      return false;
    }
    const char expected = brackets_.back();
    brackets_.pop_back();
    if (expected == op[0]) return true;
    fail(cat("unexpected '", op, "', expected '", expected, "'"), at_);
    return false;
  }

  void name() {
    const size_t begin = at_;
    while (at_ < source_.size()) {
      const CodePoint c = code_point_at(source_, at_);
      if (!is_word(c.value)) break;
      at_ += c.bytes;
    }
    add(TokenKind::kName, begin, source_.substr(begin, at_ - begin));
  }

  void string() {
    const size_t begin = at_++;
    while (at_ < source_.size() && source_[at_] != source_[begin])
      at_ += source_[at_] == '\\' ? 2 : 1;
    if (at_ >= source_.size()) return fail("a string has no end", begin);
    const auto text = unescape(source_.substr(begin + 1, at_ - begin - 1));
    ++at_;
    if (!text.ok()) return fail(text.error().message, begin);
    add(TokenKind::kString, begin, *text);
  }

  /// Digits in groups that single underscores join. Returns the byte behind them.
  size_t digits(size_t at, std::string_view allowed) const {
    const size_t begin = at;
    for (;; ++at) {
      if (at < source_.size() && allowed.find(source_[at]) != std::string_view::npos) continue;
      const bool joins = at > begin && at + 1 < source_.size() && source_[at] == '_' &&
                         allowed.find(source_[at + 1]) != std::string_view::npos;
      if (!joins) return at;
    }
  }

  void number() {
    constexpr std::string_view kDigits = "0123456789";
    const size_t begin = at_;
    size_t end = digits(at_, kDigits);
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    bool is_float = false;
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
        is_digit(source_[end + 1])) {
      end = digits(end + 1, kDigits);
      is_float = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
        ++exponent;
      if (const size_t last = digits(exponent, kDigits); last > exponent) {
        end = last;
        is_float = true;
      }
    }
    if (!is_float) return integer();
    std::string text(source_.substr(begin, end - begin));
    std::erase(text, '_');
    add(TokenKind::kFloat, begin, text).number = std::strtod(text.c_str(), nullptr);
    at_ = end;
  }

  void integer() {
    const size_t begin = at_;
    int base = 10;
    size_t end = source_[begin] == '0' ? digits(begin, "0") : digits(begin, "0123456789");
    const char letter =
        begin + 1 < source_.size() ? static_cast<char>(source_[begin + 1] | 0x20) : ' ';
    const std::string_view allowed = letter == 'x'   ? "0123456789abcdefABCDEF"
                                     : letter == 'o' ? "01234567"
                                     : letter == 'b' ? "01"
                                                     : "";
    size_t first = begin;
    if (source_[begin] == '0' && !allowed.empty()) {
      const size_t from = begin + 2 + (source_.substr(begin + 2).starts_with("_") ? 1 : 0);
      if (const size_t last = digits(from, allowed); last > from) {
        base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
        first = from;
        end = last;
      }
    }
    std::string text(source_.substr(first, end - first));
    std::erase(text, '_');
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc()) return fail("an integer does not fit into 64 bits", begin);
    add(TokenKind::kInteger, begin, text).integer = value;
    at_ = end;
  }

  const std::string_view source_;
  size_t at_ = 0;
  bool line_starts_ = true;
  std::string brackets_;  // the closing brackets that are expected, innermost last
  std::vector<Token> tokens_;
  SyntaxError error_;
};

}  // namespace

Place place_of(std::string_view source, size_t byte) {
  const std::string_view before = source.substr(0, byte);
  const size_t line = before.rfind('\n') + 1;  // 0 if there is none
  return {1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n')),
          1 + count_characters(before.substr(line))};
}

std::string normalized_source(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

Result<std::vector<Token>, SyntaxError> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace shoal::jinja
