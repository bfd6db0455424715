#include "models/chat_template/string_methods.h"

#include <algorithm>
#include <utility>

#include "models/chat_template/letter_case.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/percent_format.h"
#include "models/chat_template/string_parts.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

constexpr size_t kNotFound = std::string_view::npos;

/// A string argument. Fails if it is something else.
std::string_view string_argument(Run& run, const Value& value) {
  if (value.is(Type::kString)) return view_of(value);
  run.error(cat("a method of str needs a str, not ", type_name(value)));
  return {};
}

int64_t integer_argument(Run& run, const Value* value, int64_t fallback) {
  if (value == nullptr || value->is(Type::kNone)) return fallback;
  if (!value->is(Type::kInt) && !value->is(Type::kBool))
    run.error(cat("'", type_name(*value), "' object cannot be interpreted as an integer"));
  return value->integer;
}

Value string_list(Run& run, const std::vector<Text>& parts, bool markup) {
  std::vector<Value> items;
  for (const Text& part : parts) {
    if (!run.ok()) return {};
    items.push_back(run.string(part, markup));
  }
  return sequence_value(Type::kList, std::move(items));
}

Value split(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const bool from_right = name == "rsplit";
  const Text& text = text_of(self);
  const Signature given(run, name, arguments, "sep maxsplit");
  const int64_t most = integer_argument(run, given.find("maxsplit"), -1);
  const Value* separator = given.find("sep");
  if (!run.ok()) return {};
  if (separator == nullptr || separator->is(Type::kNone)) {
    return string_list(
        run, from_right ? split_at_spaces_from_right(text, most) : split_at_spaces(text, most),
        string_of(self).markup);
  }
  const std::string_view mark = string_argument(run, *separator);
  if (mark.empty()) return run.error("empty separator");
  return string_list(run, split_at(run, text, mark, most, from_right), string_of(self).markup);
}

Value partition(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const bool from_right = name == "rpartition";
  Signature given(run, name, arguments, "sep");
  const Value separator = given.need("sep");
  const std::string_view mark = string_argument(run, separator);
  if (!run.ok()) return {};
  if (mark.empty()) return run.error("empty separator");
  const Text& text = text_of(self);
  if (from_right && !step_to_search_back(run, text.view(), mark)) return {};
  const size_t at = from_right ? text.view().rfind(mark) : find_in(text.view(), mark);
  std::vector<Value> parts(3, run.string(Text()));
  if (at == kNotFound) {
    parts[from_right ? 2 : 0] = self;
  } else {
    parts[0] = run.string(text.slice(0, at));
    parts[1] = run.string(text.slice(at, at + mark.size()));
    parts[2] = run.string(text.slice(at + mark.size(), text.size()));
  }
  return sequence_value(Type::kTuple, std::move(parts));
}

/// The part of the text that start and end (in characters) leave, as bytes.
ByteSpan bounded(Run& run, std::string_view text, const Signature& given) {
  const auto length = static_cast<int64_t>(count_characters(text));
  const auto settle = [&](const char* name, int64_t fallback) {
    const int64_t bound = integer_argument(run, given.find(name), fallback);
    return static_cast<size_t>(std::clamp<int64_t>(bound < 0 ? bound + length : bound, 0, length));
  };
  const size_t start = settle("start", 0), end = settle("end", length);
  if (start > end) return {1, 0};
  return {byte_of_character(text, start), byte_of_character(text, end)};
}

Value starts_or_ends_with(Run& run, std::string_view name, const Value& self,
                          const Arguments& arguments) {
  const bool starts = name == "startswith";
  Signature given(run, name, arguments, "prefix start end");
  const Value wanted = given.need("prefix");
  const ByteSpan span = bounded(run, view_of(self), given);
  if (!run.ok()) return {};
  const std::vector<Value> any =
      wanted.is(Type::kTuple) ? sequence_of(wanted).items : std::vector<Value>{wanted};
  for (const Value& one : any) {
    const std::string_view mark = string_argument(run, one);
    if (!run.ok()) return {};
    if (span.begin > span.end) continue;
    const std::string_view text = view_of(self).substr(span.begin, span.end - span.begin);
    if (starts ? text.starts_with(mark) : text.ends_with(mark)) return bool_value(true);
  }
  return bool_value(false);
}

Value find(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  Signature given(run, name, arguments, "sub start end");
  const Value wanted = given.need("sub");
  const std::string_view mark = string_argument(run, wanted);
  const std::string_view all = view_of(self);
  const ByteSpan span = bounded(run, all, given);
  if (!run.step(1 + all.size() / 256)) return {};
  const bool valid = span.begin <= span.end;
  const std::string_view text = valid ? all.substr(span.begin, span.end - span.begin) : "";
  if (name == "count") {
    int64_t count = 0;
    if (mark.empty())
      return int_value(valid ? static_cast<int64_t>(count_characters(text)) + 1 : 0);
    for (size_t at = find_in(text, mark); at != kNotFound;
         at = find_in(text, mark, at + mark.size()))
      ++count;
    return int_value(count, self.from_request);
  }
  const bool from_right = name == "rfind" || name == "rindex";
  if (from_right && !step_to_search_back(run, text, mark)) return {};
  const size_t at = !valid ? kNotFound : from_right ? text.rfind(mark) : find_in(text, mark);
  if (at != kNotFound)
    return int_value(static_cast<int64_t>(count_characters(all.substr(0, span.begin + at))));
  return name.ends_with("index") ? run.error("substring not found") : int_value(-1);
}

Value remove_affix(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const bool prefix = name == "removeprefix";
  Signature given(run, name, arguments, "affix");
  const Value affix = given.need("affix");
  const std::string_view mark = string_argument(run, affix);
  const Text& text = text_of(self);
  if (!run.ok()) return {};
  if (prefix && text.view().starts_with(mark))
    return run.string(text.slice(mark.size(), text.size()));
  if (!prefix && text.view().ends_with(mark))
    return run.string(text.slice(0, text.size() - mark.size()));
  return self;
}

Value pad(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  Signature given(run, name, arguments, "width fillchar");
  const Value width = given.need("width");
  const int64_t wanted = integer_argument(run, &width, 0);
  const Text& text = text_of(self);
  Text fill(name == "zfill" ? "0" : " ", false);
  if (const Value* given_fill = given.find("fillchar")) {
    if (count_characters(string_argument(run, *given_fill)) != 1 || name == "zfill")
      return run.error("the fill character must be exactly one character long");
    fill = text_of(*given_fill);
  }
  const auto length = static_cast<int64_t>(count_characters(text.view()));
  if (!run.ok() || wanted <= length) return self;
  if (wanted > 1'000'000) return run.fail(FailureKind::kLimit, "a string is padded too far");
  const int64_t missing = wanted - length;
  const int64_t half = missing / 2 + (missing & wanted & 1);
  const int64_t left = name == "ljust" ? 0 : name == "center" ? half : missing;
  const bool signed_zeros =
      name == "zfill" && (text.view().starts_with('-') || text.view().starts_with('+'));
  Text out = signed_zeros ? text.slice(0, 1) : Text();
  for (int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(text, signed_zeros ? 1 : 0, text.size());
  for (int64_t i = left; i < missing; ++i) out.append(fill);
  return run.string(std::move(out));
}

Value join(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  Signature given(run, name, arguments, "iterable");
  std::vector<Text> parts;
  size_t bytes = 0;
  for (const Value& item : items_of(run, given.need("iterable"))) {
    if (!run.step()) return {};
    if (!item.is(Type::kString))
      return run.error(cat("join: expected str instance, ", type_name(item), " found"));
    parts.push_back(text_of(item));
    bytes += parts.back().size();
    if (bytes > run.limits().max_string_bytes) break;  // joined() refuses it
  }
  return joined(run, text_of(self), parts);
}

/// Methods such as isdigit: whether there are characters and all of them belong to a class.
template <bool (*Belongs)(char32_t)>
Value all_are(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const Signature given(run, name, arguments, "");
  const std::string_view text = view_of(self);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (!Belongs(c.value)) return bool_value(false);
    at += c.bytes;
  }
  return bool_value(!text.empty());
}

bool is_letter_or_number(char32_t c) {
  return is_letter(c) || is_numeric(c);
}

/// The methods isupper (Wanted is upper case, Other is lower case) and islower (the reverse). The
/// result is true if at least one letter has the case Wanted and no letter has the case Other.
/// Characters without a case do not count.
template <bool (*Wanted)(char32_t), bool (*Other)(char32_t)>
Value has_one_case(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const Signature given(run, name, arguments, "");
  const std::string_view text = view_of(self);
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (Other(c.value)) return bool_value(false);
    any = any || Wanted(c.value);
    at += c.bytes;
  }
  return bool_value(any);
}

Value strip(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  const Signature given(run, name, arguments, "chars");
  return run.string(stripped(run, text_of(self), given.find("chars"), side),
                    string_of(self).markup);
}

Value replace(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  Signature given(run, name, arguments, "old new count");
  const Value from = given.need("old"), to = given.need("new");
  string_argument(run, from);
  string_argument(run, to);
  const int64_t count = integer_argument(run, given.find("count"), -1);
  if (!run.ok()) return {};
  return run.string(replaced(run, text_of(self), text_of(from), text_of(to), count),
                    string_of(self).markup);
}

template <Text (*Change)(const Text&)>
Value changed(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const Signature given(run, name, arguments, "");
  return run.string(Change(text_of(self)), string_of(self).markup);
}

Text title(const Text& text) {
  return to_title(text, false);
}

Value split_lines(Run& run, std::string_view name, const Value& self, const Arguments& arguments) {
  const Signature given(run, name, arguments, "keepends");
  return string_list(run, lines_of(text_of(self), given.flag("keepends", false)),
                     string_of(self).markup);
}

Value format(Run& run, std::string_view, const Value& self, const Arguments& arguments) {
  return format_method(run, self, arguments);
}

using Method = Value (*)(Run&, std::string_view name, const Value& self, const Arguments&);

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", changed<capitalize>},
    {"center", pad},
    {"count", find},
    {"endswith", starts_or_ends_with},
    {"find", find},
    {"format", format},
    {"index", find},
    {"isalnum", all_are<is_letter_or_number>},
    {"isalpha", all_are<is_letter>},
    {"isdecimal", all_are<is_decimal_digit>},
    {"isdigit", all_are<is_decimal_digit>},
    {"islower", has_one_case<is_lower, is_upper>},
    {"isnumeric", all_are<is_numeric>},
    {"isspace", all_are<is_python_space>},
    {"isupper", has_one_case<is_upper, is_lower>},
    {"join", join},
    {"ljust", pad},
    {"lower", changed<to_lower>},
    {"lstrip", strip},
    {"partition", partition},
    {"removeprefix", remove_affix},
    {"removesuffix", remove_affix},
    {"replace", replace},
    {"rfind", find},
    {"rindex", find},
    {"rjust", pad},
    {"rpartition", partition},
    {"rsplit", split},
    {"rstrip", strip},
    {"split", split},
    {"splitlines", split_lines},
    {"startswith", starts_or_ends_with},
    {"strip", strip},
    {"title", changed<title>},
    {"upper", changed<to_upper>},
    {"zfill", pad},
};

const std::pair<std::string_view, Method>* find_method(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                         [&](const auto& row) { return row.first == name; });
  return found == std::end(kMethods) ? nullptr : found;
}

}  // namespace

bool is_string_method(std::string_view name) {
  return find_method(name) != nullptr;
}

Value call_string_method(Run& run, std::string_view name, const Value& self,
                         const Arguments& arguments) {
  const auto* const method = find_method(name);
  return method == nullptr ? Value() : method->second(run, name, self, arguments);
}

}  // namespace shoal::jinja
