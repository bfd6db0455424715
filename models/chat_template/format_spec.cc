#include "models/chat_template/format_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "models/chat_template/spelling.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

// Wider than any prompt needs, and small enough that nothing can be filled up with it.
constexpr size_t kMaxWidth = 10'000;
constexpr int kMaxPrecision = 60;

bool is_align(char c) {
  return c == '<' || c == '>' || c == '^' || c == '=';
}

size_t take_number(std::string_view& text) {
  size_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return std::min(value, kMaxWidth + 1);
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

std::string with_commas(std::string digits) {
  size_t at = std::min(digits.find_first_not_of("0123456789"), digits.size());
  while (at > 3) digits.insert(at -= 3, ",");
  return digits;
}

/// The digits of a number without its sign.
std::string integer_digits(int64_t value, const FormatSpec& spec) {
  const auto magnitude =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const int base = spec.type == 'x' || spec.type == 'X' ? 16
                   : spec.type == 'o'                   ? 8
                   : spec.type == 'b'                   ? 2
                                                        : 10;
  char buffer[72];
  std::string digits(buffer, std::to_chars(buffer, buffer + sizeof(buffer), magnitude, base).ptr);
  if (spec.type == 'X')
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](char c) { return c >= 'a' && c <= 'f' ? static_cast<char>(c - 32) : c; });
  if (spec.alternate && base != 10) digits = std::string("0") + spec.type + digits;
  return digits;
}

std::string float_digits(double value, const FormatSpec& spec) {
  value = std::fabs(value);
  if (spec.type == 0 && spec.precision < 0) return float_text(value);
  const bool is_percent = spec.type == '%';
  const char type = is_percent ? 'f' : spec.type == 0 ? 'g' : spec.type;
  const char format[] = {'%', '.', '*', type, '\0'};
  char buffer[512];
  const int size =
      std::snprintf(buffer, sizeof(buffer), format, spec.precision < 0 ? 6 : spec.precision,
                    is_percent ? value * 100 : value);
  return std::string(buffer, static_cast<size_t>(size)) + (is_percent ? "%" : "");
}

Text padded(const Text& text, size_t prefix, char align, const FormatSpec& spec, bool origin) {
  const size_t length = count_characters(text.view());
  if (length >= spec.width) return text;
  const size_t missing = spec.width - length;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text out;
  if (align == '=') out.append(text, 0, prefix);
  for (size_t i = 0; i < left; ++i) out.append(spec.fill, origin);
  out.append(text, align == '=' ? prefix : 0, text.size());
  for (size_t i = left; i < missing; ++i) out.append(spec.fill, origin);
  return out;
}

}  // namespace

FormatSpec parse_format_spec(Run& run, std::string_view text) {
  FormatSpec spec;
  if (!text.empty()) {
    const size_t first = code_point_at(text, 0).bytes;
    if (text.size() > first && is_align(text[first])) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      text.remove_prefix(first + 1);
    } else if (is_align(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  for (const char sign : {'+', '-', ' '})
    if (take(text, sign)) spec.sign = sign;
  spec.alternate = take(text, '#');
  if (take(text, '0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = take_number(text);
  spec.grouped = take(text, ',');
  if (take(text, '.')) spec.precision = static_cast<int>(take_number(text));
  if (!text.empty()) spec.type = text[0];
  constexpr std::string_view kTypes = "sdxXobfFeEgG%";
  if (text.size() > 1 || (!text.empty() && kTypes.find(spec.type) == std::string_view::npos))
    run.error("a format specification is not valid, or not supported");
  if (spec.width > kMaxWidth || spec.precision > kMaxPrecision)
    run.fail(FailureKind::kLimit, cat("a format is wider than ", kMaxWidth));
  return spec;
}

Text format_value(Run& run, const Value& value, const FormatSpec& spec) {
  if (!run.ok()) return {};
  const bool is_integer = value.is(Type::kInt) || (value.is(Type::kBool) && spec.type != 0);
  if (!is_integer && !value.is(Type::kFloat)) {
    Text text = str_text(run, value);
    if (spec.type != 0 && spec.type != 's')
      run.error(cat("a ", type_name(value), " cannot be formatted as a number"));
    if (spec.precision >= 0) {
      const size_t end = byte_of_character(text.view(), static_cast<size_t>(spec.precision));
      text = text.slice(0, end);
    }
    const char align = spec.align == 0 || spec.align == '=' ? '<' : spec.align;
    return padded(text, 0, align, spec, value.from_request);
  }
  constexpr std::string_view kIntegerTypes = "dxXob";
  const bool as_integer =
      is_integer && (spec.type == 0 || kIntegerTypes.find(spec.type) != std::string_view::npos);
  if (spec.type == 's' ||
      (!is_integer && kIntegerTypes.find(spec.type) != std::string_view::npos && spec.type != 0)) {
    run.error(cat("format '", spec.type, "' does not fit a ", type_name(value)));
    return {};
  }
  const double number = value.as_double();
  const bool is_negative = as_integer ? value.integer < 0 : std::signbit(number);
  std::string digits =
      as_integer ? integer_digits(value.integer, spec) : float_digits(number, spec);
  if (spec.grouped) digits = with_commas(std::move(digits));
  const std::string sign = is_negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  return padded(Text(sign + digits, value.from_request), sign.size(),
                spec.align == 0 ? '>' : spec.align, spec, value.from_request);
}

}  // namespace shoal::jinja
