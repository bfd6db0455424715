#include "models/tokenizer/regex_syntax.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "models/tokenizer/regex_property.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

// Unicode's White_Space. PCRE2's own \s has U+180E too.
constexpr std::string_view kSpace =
    R"(\t-\r\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// PCRE2's own \w lacks marks and connectors and includes all of \p{N}. Oniguruma's \w includes all
// digits, but only those other numbers that are in Latin-1.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";
constexpr std::string_view kHex = "0-9A-Fa-f";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size() && problem_.empty()) outside_class();
    if (!problem_.empty()) return Status::error(Code::kUnimplemented, problem_);
    return std::move(out_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void refuse(std::string_view construct) {
    if (problem_.empty()) problem_ = cat(construct, " at byte ", at_, " is not supported");
  }
  /// Writes one atom, which a quantifier may follow.
  void atom(std::string_view text) {
    last_atom_ = out_.size();
    out_ += text;
  }
  void wrap_last_atom() {
    out_.insert(last_atom_, "(?:");
    out_ += ')';
  }

  void outside_class() {
    switch (const char c = peek()) {
      case '\\':
        ++at_;
        escape_outside();
        break;
      case '[':
        last_atom_ = out_.size();
        ++at_;
        open_class(0);
        break;
      case '(':
        open_group();
        break;
      case ')':
        ++at_;
        out_ += c;
        if (!groups_.empty()) {
          last_atom_ = groups_.back();
          groups_.pop_back();
        }
        break;
      case '{':
        interval();
        break;
      case '*':
      case '+':
      case '?':
      case '|':
        ++at_;
        out_ += c;
        break;
      default:
        character();
    }
  }

  void character() {
    size_t bytes = 1;
    while (at_ + bytes < in_.size() &&
           (static_cast<unsigned char>(in_[at_ + bytes]) & 0xC0) == 0x80)
      ++bytes;
    atom(in_.substr(at_, bytes));
    at_ += bytes;
  }

  void open_group() {
    groups_.push_back(out_.size());
    if (peek(1) == '*') return refuse("a callout or verb (*...)");
    if (peek(1) != '?') {
      ++at_;
      out_ += '(';
      return;
    }
    const char kind = peek(2);
    if (kind == '#') {
      const size_t end = std::min(in_.find(')', at_), in_.size());
      at_ = end == in_.size() ? end : end + 1;
      groups_.pop_back();
      return;
    }
    if (kind == ':' || kind == '=' || kind == '!' || kind == '>' || kind == '<') {
      out_ += in_.substr(at_, 3);
      at_ += 3;
      return;
    }
    // Options. Ruby's m means "dot matches newline", which is s in PCRE2.
    size_t end = at_ + 2;
    std::string options;
    for (; end < in_.size() &&
           (in_[end] == 'i' || in_[end] == 'm' || in_[end] == 'x' || in_[end] == '-');
         ++end) {
      options += in_[end] == 'm' ? 's' : in_[end];
    }
    if (end >= in_.size() || options.empty() || (in_[end] != ':' && in_[end] != ')'))
      return refuse("this group (?...");
    out_ += cat("(?", options, in_[end]);
    if (in_[end] == ')') groups_.pop_back();
    at_ = end + 1;
  }

  /// Translates {n}, {n,}, {n,m} and {,m}; any other brace is a literal character.
  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    const std::string_view low = in_.substr(at_ + 1, end - at_ - 1);
    std::string_view high = low;
    const bool range = end < in_.size() && in_[end] == ',';
    if (range) {
      const size_t begin = ++end;
      while (end < in_.size() && is_digit(in_[end])) ++end;
      high = in_.substr(begin, end - begin);
    }
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      ++at_;
      return atom("\\{");
    }
    at_ = end + 1;
    out_ += cat("{", low.empty() ? "0" : low, range ? "," : "", range ? high : "", "}");
    // In Ruby's syntax a + after braces repeats the whole quantified atom, and a ? after a fixed
    // count makes it optional.
    if (peek() == '+' || (peek() == '?' && !range)) wrap_last_atom();
  }

  /// The translation of a one-letter escape outside a class; empty if it is not one of these.
  static std::string short_escape(char c) {
    switch (c) {
      case 's':
        return cat("[", kSpace, "]");
      case 'S':
        return cat("[^", kSpace, "]");
      case 'w':
        return cat("[", kWord, "]");
      case 'W':
        return cat("[^", kWord, "]");
      case 'h':
        return cat("[", kHex, "]");
      case 'H':
        return cat("[^", kHex, "]");
      case 'b':
        return cat("(?:(?<=[", kWord, "])(?![", kWord, "])|(?<![", kWord, "])(?=[", kWord, "]))");
      case 'B':
        return cat("(?:(?<=[", kWord, "])(?=[", kWord, "])|(?<![", kWord, "])(?![", kWord, "]))");
      default:
        break;
    }
    // PCRE2 writes these in the same way as Oniguruma: anchors, \K, \R, \X and references to groups
    // by number.
    const bool same =
        c != '\0' && std::string_view("AZzKRX123456789").find(c) != std::string_view::npos;
    return same ? cat("\\", c) : "";
  }

  void escape_outside() {
    if (const std::string text = short_escape(peek()); !text.empty()) {
      ++at_;
      return atom(text);
    }
    if (peek() != 'k') return atom(shared_escape());
    const size_t end = in_.find('>', at_);  // \k<name>
    if (peek(1) != '<' || end == std::string_view::npos) return refuse("this \\k");
    atom(cat("\\", in_.substr(at_, end + 1 - at_)));
    at_ = end + 1;
  }

  /// Translates escapes that mean the same inside and outside a class. The backslash has been
  /// consumed.
  std::string shared_escape() {
    const char c = peek();
    if (at_ >= in_.size()) return "\\";  // PCRE2 reports the lone backslash
    if (std::string_view("dDtnrfae").find(c) != std::string_view::npos) {
      ++at_;
      return cat("\\", c);
    }
    switch (c) {
      case 'v':
        ++at_;
        return "\\x0B";
      case '0':
        ++at_;
        return "\\x00";
      case 'p':
      case 'P':
        return property();
      case 'x':
        return hexadecimal();
      case 'u':
        if (in_.size() - at_ < 5) break;
        at_ += 5;
        return cat("\\x{", in_.substr(at_ - 4, 4), "}");
      default:
        if (!is_letter(c) && !is_digit(c)) {
          if (static_cast<unsigned char>(c) >= 0x80) return "";  // the character itself follows
          ++at_;
          return cat("\\", c);
        }
    }
    refuse(cat("the escape \\", c));
    return "";
  }

  std::string property() {
    const char kind = peek();
    const size_t end = in_.find('}', at_);
    if (peek(1) != '{' || end == std::string_view::npos) {
      refuse("\\p without braces");
      return "";
    }
    std::string_view name = in_.substr(at_ + 2, end - at_ - 2);
    bool negative = kind == 'P';
    if (!name.empty() && name.front() == '^') {
      negative = !negative;
      name.remove_prefix(1);
    }
    at_ = end + 1;
    return cat(negative ? "\\P{" : "\\p{", oniguruma_property(name), "}");
  }

  std::string hexadecimal() {
    if (peek(1) == '{') {
      const size_t end = in_.find('}', at_);
      if (end != std::string_view::npos) {
        std::string text = cat("\\", in_.substr(at_, end + 1 - at_));
        at_ = end + 1;
        return text;
      }
    } else if (peek(1) >= '0' && peek(1) <= '7' &&
               std::isxdigit(static_cast<unsigned char>(peek(2)))) {
      at_ += 3;
      return cat("\\", in_.substr(at_ - 3, 3));
    }
    refuse("\\x of a raw byte");
    return "";
  }

  /// Called after '['. A depth above 0 is a class within a class, whose items are added to the
  /// outer class.
  void open_class(int depth) {
    const bool negative = peek() == '^';
    if (negative && depth > 0) return refuse("a negated class within a class");
    if (depth > 32) return refuse("classes nested deeper than 32");
    if (depth == 0) out_ += negative ? "[^" : "[";
    if (negative) ++at_;
    if (peek() == ']') {  // as the first item it is a literal character
      ++at_;
      out_ += "\\]";
    }
    while (at_ < in_.size() && problem_.empty()) {
      const char c = in_[at_];
      if (c == ']') {
        ++at_;
        if (depth == 0) out_ += ']';
        return;
      }
      class_item(c, depth);
    }
    // No closing bracket: PCRE2 reports it.
  }

  void class_item(char c, int depth) {
    if (c == '\\') {
      ++at_;
      out_ += escape_inside();
    } else if (c == '&' && peek(1) == '&') {
      refuse("a class intersection &&");
    } else if (c == '[' && peek(1) == ':') {
      const size_t end = in_.find(":]", at_ + 2);
      if (end == std::string_view::npos) return refuse("this [: in a class");
      out_ += in_.substr(at_, end + 2 - at_);
      at_ = end + 2;
    } else if (c == '[') {
      ++at_;
      open_class(depth + 1);
    } else {
      out_ += c;
      ++at_;
    }
  }

  std::string escape_inside() {
    switch (peek()) {
      case 's':
        ++at_;
        return std::string(kSpace);
      case 'S':
        ++at_;
        return "\\P{White_Space}";
      case 'w':
        ++at_;
        return std::string(kWord);
      case 'h':
        ++at_;
        return std::string(kHex);
      case 'b':
        ++at_;
        return "\\x08";
      case 'W':
      case 'H':
        refuse(cat("\\", peek(), " in a class"));
        return "";
      default:
        return shared_escape();
    }
  }

  const std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t last_atom_ = 0;        // where the last quantifiable thing begins in out_
  std::vector<size_t> groups_;  // where each open group begins in out_
  std::string problem_;
};

}  // namespace

Result<std::string> oniguruma_to_pcre2(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace shoal
