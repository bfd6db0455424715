#include "models/chat_template/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "models/chat_template/json_reader.h"
#include "models/chat_template/json_writer.h"
#include "models/chat_template/letter_case.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/sequence_filters.h"
#include "models/chat_template/spelling.h"
#include "models/chat_template/string_parts.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

bool is_markup(const Value& value) {
  return value.is(Type::kString) && string_of(value).markup;
}

Text filter_title(const Text& text) {
  return to_title(text, true);
}

/// Filters that change a text.
template <Text (*Change)(const Text&)>
Value filter_change(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "the filter", arguments, "");
  return run.string(Change(str_text(run, value)), is_markup(value));
}

Value filter_trim(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "trim", arguments, "chars");
  return run.string(stripped(run, str_text(run, value), given.find("chars"), Side::kBoth),
                    is_markup(value));
}

Value filter_string(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "string", arguments, "");
  return value.is(Type::kString) ? value : run.string(str_text(run, value));
}

Value filter_safe(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "safe", arguments, "");
  return run.string(str_text(run, value), true);
}

Value filter_escape(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "escape", arguments, "");
  if (is_markup(value)) return value;
  return run.string(html_escaped(str_text(run, value)), true);
}

Value filter_default(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "default", arguments, "default_value boolean");
  const bool missing =
      value.is(Type::kUndefined) || (given.flag("boolean", false) && !is_true(value));
  if (!missing) return value;
  const Value* fallback = given.find("default_value");
  return fallback == nullptr ? run.string("") : *fallback;
}

Value filter_replace(Run& run, const Value& value, const Arguments& arguments) {
  Signature given(run, "replace", arguments, "old new count");
  const Value from = given.need("old"), to = given.need("new");
  const Value* count = given.find("count");
  const bool has_count = count != nullptr && !count->is(Type::kNone);
  if (has_count && !count->is(Type::kInt)) return run.error("replace: count must be an integer");
  if (!run.ok()) return {};
  return run.string(replaced(run, str_text(run, value), str_text(run, from), str_text(run, to),
                             has_count ? count->integer : -1));
}

Value filter_indent(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "indent", arguments, "width first blank");
  if (value.is(Type::kUndefined)) return run.error(undefined_reason(value));
  if (!value.is(Type::kString)) return run.error("indent: the value must be a string");
  const Value* width = given.find("width");
  Text indent(std::string(4, ' '), false);
  if (width != nullptr && width->is(Type::kString)) {
    indent = text_of(*width);
  } else if (width != nullptr) {
    if (!width->is(Type::kInt)) return run.error("indent: width must be a number or a string");
    if (width->integer > 10'000) return run.fail(FailureKind::kLimit, "indent: width above 10000");
    indent =
        Text(std::string(static_cast<size_t>(std::max<int64_t>(width->integer, 0)), ' '), false);
  }
  Text text = text_of(value);
  text.append("\n", false);
  const std::vector<Text> lines = lines_of(text, false);
  Text out = given.flag("first", false) ? indent : Text();
  for (size_t i = 0; i < lines.size() && run.step(); ++i) {
    if (i > 0) out.append("\n", false);
    if (i > 0 && (!lines[i].empty() || given.flag("blank", false))) out.append(indent);
    out.append(lines[i]);
    if (out.size() > run.limits().max_string_bytes) break;  // run.string() refuses it
  }
  return run.string(std::move(out), is_markup(value));
}

/// The characters of a number in Python: without white space around it, and with single
/// underscores between digits left out. Nothing if the underscores are elsewhere.
std::optional<std::string> number_characters(std::string_view text) {
  text = text.substr(0, skip_space_at_end(text));
  text.remove_prefix(skip_space(text));
  std::string out;
  const auto is_digit_at = [&](size_t at) {
    return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<int64_t> parsed_int(Run& run, std::string_view text, int base) {
  const std::optional<std::string> characters = number_characters(text);
  if (!characters) return std::nullopt;
  std::string_view digits = *characters;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const char letter = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : 0;
  if (letter != 0 && digits.size() > 1 && digits[0] == '0' && (digits[1] | 0x20) == letter)
    digits.remove_prefix(2);
  if (digits.empty() || digits.starts_with('-')) return std::nullopt;
  int64_t value = 0;
  const std::string signed_digits = (negative ? "-" : "") + std::string(digits);
  const char* const end = signed_digits.data() + signed_digits.size();
  const auto [rest, error] = std::from_chars(signed_digits.data(), end, value, base);
  if (rest != end) return std::nullopt;
  if (error == std::errc::result_out_of_range)
    run.fail(FailureKind::kLimit, "an integer does not fit into 64 bits");
  return value;
}

std::optional<double> parsed_float(std::string_view text) {
  const std::optional<std::string> characters = number_characters(text);
  if (!characters || characters->empty()) return std::nullopt;
  std::string lower = *characters;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string_view word =
      std::string_view(lower).substr(lower[0] == '+' || lower[0] == '-' ? 1 : 0);
  const bool is_word = word == "inf" || word == "infinity" || word == "nan";
  // strtod also reads hexadecimal numbers, which Python's float() refuses.
  if (!is_word && lower.find_first_not_of("0123456789+-.e") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return value;
}

Value int_of_double(Run& run, double number, bool origin) {
  if (std::isinf(number)) return run.error("cannot convert float infinity to integer");
  if (std::fabs(number) >= 9.2e18)
    return run.fail(FailureKind::kLimit, "an integer does not fit into 64 bits");
  return int_value(static_cast<int64_t>(number), origin);
}

Value filter_int(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "int", arguments, "default base");
  const Value* fallback = given.find("default");
  const Value* base = given.find("base");
  const bool origin =
      value.from_request || (value.is(Type::kString) && !text_of(value).from_request().empty());
  if (value.is(Type::kUndefined)) return run.error(undefined_reason(value));
  if (base != nullptr && (!base->is(Type::kInt) || base->integer < 2 || base->integer > 36))
    return run.error("int: base must be a number from 2 to 36");
  if (value.is(Type::kInt) || value.is(Type::kBool)) return int_value(value.integer, origin);
  std::optional<double> number;
  if (value.is(Type::kFloat)) number = value.number;
  if (value.is(Type::kString)) {
    const int radix = base == nullptr ? 10 : static_cast<int>(base->integer);
    if (const auto parsed = parsed_int(run, view_of(value), radix))
      return int_value(*parsed, origin);
    number = parsed_float(view_of(value));
    if (number && std::isinf(*number)) number.reset();
  }
  if (number && !std::isnan(*number)) return int_of_double(run, *number, origin);
  return fallback == nullptr ? int_value(0) : *fallback;
}

Value filter_float(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "float", arguments, "default");
  const bool origin =
      value.from_request || (value.is(Type::kString) && !text_of(value).from_request().empty());
  if (value.is(Type::kUndefined)) return run.error(undefined_reason(value));
  if (value.is_number()) return float_value(value.as_double(), origin);
  if (value.is(Type::kString)) {
    if (const auto parsed = parsed_float(view_of(value))) return float_value(*parsed, origin);
  }
  const Value* fallback = given.find("default");
  return fallback == nullptr ? float_value(0) : *fallback;
}

Value filter_abs(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "abs", arguments, "");
  if (!value.is_number()) return run.error("abs: the value must be a number");
  const bool negative = value.is(Type::kFloat) ? std::signbit(value.number) : value.integer < 0;
  return unary_operation(run, negative ? "-" : "+", value);
}

Value filter_length(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "length", arguments, "");
  const bool origin =
      value.from_request || (value.is(Type::kString) && !text_of(value).from_request().empty());
  return int_value(length_of(run, value), origin);
}

Value filter_from_json(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "from_json", arguments, "");
  if (!value.is(Type::kString)) return run.error("from_json: the value must be a string");
  return value_from_json_text(run, text_of(value));
}

using Filter = Value (*)(Run&, const Value&, const Arguments&);

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_change<capitalize>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"from_json", filter_from_json},
    {"indent", filter_indent},
    {"int", filter_int},
    {"length", filter_length},
    {"lower", filter_change<to_lower>},
    {"replace", filter_replace},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_change<filter_title>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"upper", filter_change<to_upper>},
};

const std::pair<std::string_view, Filter>* find_filter(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                         [&](const auto& row) { return row.first == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr || is_sequence_filter(name);
}

Value call_filter(Run& run, std::string_view name, const Value& value, const Arguments& arguments) {
  if (!run.step()) return {};
  if (const auto* const filter = find_filter(name)) return filter->second(run, value, arguments);
  if (is_sequence_filter(name)) return call_sequence_filter(run, name, value, arguments);
  return run.error(cat("there is no filter named '", name, "'"));
}

}  // namespace shoal::jinja
