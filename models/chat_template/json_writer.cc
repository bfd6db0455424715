#include "models/chat_template/json_writer.h"

#include <algorithm>
#include <cmath>

#include "models/chat_template/operators.h"
#include "models/chat_template/spelling.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

std::string hex_escape(uint32_t unit) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) text += kDigits[(unit >> shift) & 15];
  return text;
}

/// The escape of a character, or an empty text if it is copied.
std::string json_escaped(char32_t c, bool ensure_ascii) {
  constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
  constexpr std::string_view kLetters = "\"\\nrtfb";
  if (c < 0x80) {
    const size_t named = kNamed.find(static_cast<char>(c));
    if (named != std::string_view::npos) return std::string("\\") + kLetters[named];
    if (c < 0x20) return hex_escape(c);
  }
  if (!ensure_ascii || c < 0x7F) return {};
  if (c < 0x10000) return hex_escape(c);
  const uint32_t rest = c - 0x10000;
  return hex_escape(0xD800 + (rest >> 10)) + hex_escape(0xDC00 + (rest & 0x3FF));
}

class JsonWriter {
 public:
  JsonWriter(Run& run, const JsonStyle& style) : run_(run), style_(style) {}

  void add(const Value& value, int level) {
    if (!run_.step()) return;
    const bool origin = value.from_request;
    switch (value.type) {
      case Type::kNone:
        return out_.append("null", origin);
      case Type::kBool:
        return out_.append(value.integer != 0 ? "true" : "false", origin);
      case Type::kInt:
        return out_.append(std::to_string(value.integer), origin);
      case Type::kFloat:
        return out_.append(number(value.number), origin);
      case Type::kString:
        return add_string(text_of(value), origin);
      case Type::kList:
      case Type::kTuple:
        return add_list(value, level);
      case Type::kDict:
        return add_dict(value, level);
      default:
        run_.error(cat("Object of type ", type_name(value), " is not JSON serializable"));
    }
  }

  Text take() { return std::move(out_); }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void add_string(const Text& text, bool origin) {
    out_.append("\"", origin);
    size_t copied = 0;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text.view(), at);
      if (const std::string escape = json_escaped(c.value, style_.ensure_ascii); !escape.empty()) {
        out_.append(text, copied, at);
        out_.append(escape, text.is_from_request(at));
        copied = at + c.bytes;
      }
      at += c.bytes;
    }
    out_.append(text, copied, text.size());
    out_.append("\"", origin);
    if (out_.size() > run_.limits().max_string_bytes)
      run_.fail(FailureKind::kLimit, "tojson writes too much");
  }

  void new_line(int level, bool origin) {
    if (!style_.has_indent) return;
    out_.append("\n", origin);
    for (int i = 0; i < level; ++i) out_.append(style_.indent);
  }

  void separate(bool is_first, int level, bool origin) {
    if (!is_first) {
      // Text from the template has no origin to lose; a separator between what a request brought
      // counts as the request's.
      out_.append(style_.item_separator.view(), origin);
    }
    new_line(level, origin);
  }

  void add_list(const Value& value, int level) {
    const bool origin = value.from_request;
    const auto& items = sequence_of(value).items;
    if (items.empty()) return out_.append("[]", origin);
    out_.append("[", origin);
    for (size_t i = 0; i < items.size() && run_.ok(); ++i) {
      separate(i == 0, level + 1, origin);
      add(items[i], level + 1);
    }
    new_line(level, origin);
    out_.append("]", origin);
  }

  void add_key(const Value& key) {
    Text text;
    switch (key.type) {
      case Type::kString:
        return add_string(text_of(key), key.from_request);
      case Type::kNone:
        text.append("null", key.from_request);
        break;
      case Type::kBool:
        text.append(key.integer != 0 ? "true" : "false", key.from_request);
        break;
      case Type::kInt:
        text.append(std::to_string(key.integer), key.from_request);
        break;
      case Type::kFloat:
        text.append(number(key.number), key.from_request);
        break;
      default:
        run_.error(cat("keys must be str, int, float, bool or None, not ", type_name(key)));
    }
    add_string(text, key.from_request);
  }

  void add_dict(const Value& value, int level) {
    const bool origin = value.from_request;
    std::vector<std::pair<Value, Value>> items = dict_of(value).items;
    if (items.empty()) return out_.append("{}", origin);
    if (style_.sort_keys) {
      std::vector<Value> keys;
      for (const auto& [key, item] : items) keys.push_back(key);
      std::vector<std::pair<Value, Value>> sorted;
      for (const size_t i : sorted_order(run_, keys, false)) sorted.push_back(items[i]);
      items = std::move(sorted);
    }
    out_.append("{", origin);
    for (size_t i = 0; i < items.size() && run_.ok(); ++i) {
      separate(i == 0, level + 1, origin);
      add_key(items[i].first);
      out_.append(style_.key_separator.view(), origin);
      add(items[i].second, level + 1);
    }
    new_line(level, origin);
    out_.append("}", origin);
  }

  Run& run_;
  const JsonStyle& style_;
  Text out_;
};

}  // namespace

Value json_value(Run& run, const Value& value, const JsonStyle& style) {
  JsonWriter writer(run, style);
  writer.add(value, 0);
  return run.ok() ? run.string(writer.take()) : Value();
}

Value filter_tojson(Run& run, const Value& value, const Arguments& arguments) {
  Signature given(run, "tojson", arguments, "ensure_ascii indent separators sort_keys");
  JsonStyle style;
  style.ensure_ascii = given.flag("ensure_ascii", false);
  style.sort_keys = given.flag("sort_keys", false);
  const Value* indent = given.find("indent");
  if (indent != nullptr && !indent->is(Type::kNone)) {
    style.has_indent = true;
    style.item_separator = Text(",", false);
    if (indent->is(Type::kString)) {
      style.indent = text_of(*indent);
    } else if (indent->is(Type::kInt) || indent->is(Type::kBool)) {
      if (indent->integer > 100) return run.fail(FailureKind::kLimit, "tojson: indent above 100");
      const auto width = static_cast<size_t>(std::max<int64_t>(indent->integer, 0));
      style.indent = Text(std::string(width, ' '), false);
    } else {
      return run.error("tojson: indent must be a number or a string");
    }
  }
  const Value* separators = given.find("separators");
  if (separators != nullptr && !separators->is(Type::kNone)) {
    const bool is_pair = (separators->is(Type::kTuple) || separators->is(Type::kList)) &&
                         sequence_of(*separators).items.size() == 2 &&
                         sequence_of(*separators).items[0].is(Type::kString) &&
                         sequence_of(*separators).items[1].is(Type::kString);
    if (!is_pair) return run.error("tojson: separators must be two strings");
    style.item_separator = text_of(sequence_of(*separators).items[0]);
    style.key_separator = text_of(sequence_of(*separators).items[1]);
  }
  return json_value(run, value, style);
}

}  // namespace shoal::jinja
