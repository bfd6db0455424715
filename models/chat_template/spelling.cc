#include "models/chat_template/spelling.h"

#include <charconv>
#include <cmath>
#include <utf8proc.h>

#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

/// How repr() writes a character that it does not copy.
std::string escaped(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  constexpr char kDigits[] = "0123456789abcdef";
  const int width = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
  std::string text = c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
  for (int shift = 4 * (width - 1); shift >= 0; shift -= 4) text += kDigits[(c >> shift) & 15];
  return text;
}

void add_string_repr(const StringObject& string, Text& out, bool from_request) {
  const Text& text = string.text;
  const bool has_single = text.bytes().find('\'') != std::string::npos;
  const bool has_double = text.bytes().find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  const std::string mark(1, quote);
  if (string.markup) out.append("Markup(", false);
  out.append(mark, from_request);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.view(), at);
    const bool needs_backslash = c.value == '\\' || c.value == static_cast<char32_t>(quote);
    if (needs_backslash) out.append("\\", text.is_from_request(at));
    if (needs_backslash || is_printable(c.value)) {
      out.append(text, at, at + c.bytes);
    } else {
      out.append(escaped(c.value), text.is_from_request(at));
    }
    at += c.bytes;
  }
  out.append(mark, from_request);
  if (string.markup) out.append(")", false);
}

class Speller {
 public:
  explicit Speller(Run& run) : run_(run) {}

  void add(const Value& value, Text& out) {
    if (!run_.step()) return;
    // Namespaces can hold each other, so that a bound on the nesting of containers does not do.
    if (++depth_ > 2 * kMaxNesting) {
      run_.fail(FailureKind::kLimit, "a value is nested too deeply to be printed");
    } else if (out.size() > run_.limits().max_string_bytes) {
      run_.fail(FailureKind::kLimit, "a value is too long to be printed");
    } else {
      add_repr(value, out);
    }
    --depth_;
  }

 private:
  void add_repr(const Value& value, Text& out) {
    const bool origin = value.from_request;
    switch (value.type) {
      case Type::kUndefined:
        return out.append("Undefined", origin);
      case Type::kNone:
        return out.append("None", origin);
      case Type::kBool:
        return out.append(value.integer != 0 ? "True" : "False", origin);
      case Type::kInt:
        return out.append(std::to_string(value.integer), origin);
      case Type::kFloat:
        return out.append(float_text(value.number), origin);
      case Type::kString:
        return add_string_repr(string_of(value), out, origin);
      case Type::kList:
        return add_items(value, "[", "]", out);
      case Type::kTuple:
        return add_items(value, "(", sequence_of(value).items.size() == 1 ? ",)" : ")", out);
      case Type::kView:
        return add_view(value, out);
      case Type::kDict:
        return add_dict(dict_of(value), origin, out);
      case Type::kNamespace:
        out.append("<Namespace ", origin);
        add_dict(namespace_of(value).attributes, origin, out);
        return out.append(">", origin);
      default:
        run_.fail(FailureKind::kLimit, cat("a ", type_name(value), " cannot be printed"));
    }
  }

  void add_items(const Value& value, std::string_view open, std::string_view close, Text& out) {
    const bool origin = value.from_request;
    out.append(open, origin);
    bool is_first = true;
    for (const Value& item : sequence_of(value).items) {
      if (!std::exchange(is_first, false)) out.append(", ", origin);
      add(item, out);
      if (!run_.ok()) return;
    }
    out.append(close, origin);
  }

  void add_view(const Value& value, Text& out) {
    const SequenceObject& sequence = sequence_of(value);
    out.append(sequence.prefix, value.from_request);
    if (!sequence.is_range) add_items(value, "[", "])", out);
  }

  void add_dict(const DictObject& dict, bool origin, Text& out) {
    out.append("{", origin);
    bool is_first = true;
    for (const auto& [key, item] : dict.items) {
      if (!std::exchange(is_first, false)) out.append(", ", origin);
      add(key, out);
      out.append(": ", origin);
      add(item, out);
      if (!run_.ok()) return;
    }
    out.append("}", origin);
  }

  Run& run_;
  int depth_ = 0;
};

}  // namespace

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  if (number == 0) return std::signbit(number) ? "-0.0" : "0.0";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific).ptr;
  std::string text(buffer, end);  // "-1.2345e+06"
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  std::string digits = text.substr(0, e);
  std::erase(digits, '.');
  std::string sign;
  if (digits[0] == '-') {
    sign = "-";
    digits.erase(0, 1);
  }
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string power = std::to_string(std::abs(exponent));
    return sign + digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "") + "e" +
           (exponent < 0 ? "-" : "+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(-exponent - 1, '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(exponent + 1 - count, '0') + ".0";
  return sign + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

Text repr_text(Run& run, const Value& value) {
  Text text;
  Speller(run).add(value, text);
  return text;
}

Text str_text(Run& run, const Value& value) {
  if (value.is(Type::kString)) return text_of(value);
  if (value.is(Type::kUndefined)) return {};
  return repr_text(run, value);
}

}  // namespace shoal::jinja
