#include "models/chat_template/attributes.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "models/chat_template/operators.h"
#include "models/chat_template/string_methods.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Names that Python's type has and that the sandbox does not give out.
bool is_unsafe(const Value& value, std::string_view name) {
  if (name.starts_with("__") && name.ends_with("__")) return true;
  if (value.is(Type::kDict))
    return is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"});
  if (value.is(Type::kList))
    return is_one_of(name,
                     {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
  return false;
}

bool has_method(const Value& value, std::string_view name) {
  switch (value.type) {
    case Type::kString:
      return is_string_method(name);
    case Type::kDict:
      return is_one_of(name, {"items", "keys", "values", "get", "copy"});
    case Type::kList:
      return is_one_of(name, {"index", "count", "copy"});
    case Type::kTuple:
      return is_one_of(name, {"index", "count"});
    case Type::kLoop:
      return is_one_of(name, {"cycle", "changed"});
    case Type::kFloat:
      return name == "is_integer";
    case Type::kFunction:
      return value.object != nullptr && name == "fromkeys" &&
             static_cast<const FunctionObject&>(*value.object).name == "dict";
    default:
      return false;
  }
}

/// Sets `out` to the attribute of `loop` that has this name. Returns false if there is no such
/// attribute.
bool loop_attribute(const Value& value, std::string_view name, Value& out) {
  const auto& loop = static_cast<const LoopObject&>(*value.object);
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index")
    out = int_value(index + 1);
  else if (name == "index0")
    out = int_value(index);
  else if (name == "first")
    out = bool_value(index == 0);
  else if (name == "last")
    out = bool_value(index + 1 == length);
  else if (name == "length")
    out = int_value(length);
  else if (name == "revindex")
    out = int_value(length - index);
  else if (name == "revindex0")
    out = int_value(length - index - 1);
  else if (name == "depth")
    out = int_value(1);
  else if (name == "depth0")
    out = int_value(0);
  else if (name == "previtem")
    out = index == 0 ? undefined_value("there is no previous item") : loop.items[loop.index - 1];
  else if (name == "nextitem")
    out =
        index + 1 == length ? undefined_value("there is no next item") : loop.items[loop.index + 1];
  else
    return false;
  return true;
}

/// getattr(value, name). False: Python would raise AttributeError.
bool python_attribute(const Value& value, const std::string& name, Value& out) {
  if (value.is(Type::kLoop) && loop_attribute(value, name, out)) return true;
  if (value.is(Type::kNamespace)) {
    const Value* found = namespace_of(value).attributes.find(name);
    if (found != nullptr) out = *found;
    return found != nullptr;
  }
  if (value.is(Type::kFunction) && name == "name") {
    const auto& function = static_cast<const FunctionObject&>(*value.object);
    if (function.macro == nullptr) return false;
    out = constant_string(Text(function.name, false));
    return true;
  }
  if (is_unsafe(value, name)) {
    out = undefined_value(
        cat("access to attribute '", name, "' of '", type_name(value), "' object is unsafe"));
    return true;
  }
  if (!has_method(value, name)) return false;
  out = function_value(name, value);
  return true;
}

/// value[key]. False: Python would raise TypeError or LookupError.
bool python_item(Run& run, const Value& value, const Value& key, Value& out) {
  if (value.is(Type::kDict)) {
    const bool may_be_there = step_to_find(run, dict_of(value), key) && is_hashable(key);
    const Value* found = may_be_there ? dict_of(value).find(key) : nullptr;
    if (found != nullptr) out = *found;
    return found != nullptr;
  }
  const bool is_range = value.is(Type::kView) && sequence_of(value).is_range;
  const bool is_list = value.is(Type::kList) || value.is(Type::kTuple) || is_range;
  if (!is_list && !value.is(Type::kString)) return false;
  if (!key.is(Type::kInt) && !key.is(Type::kBool)) return false;
  const std::string_view text = is_list ? std::string_view() : view_of(value);
  const auto length =
      static_cast<int64_t>(is_list ? sequence_of(value).items.size() : count_characters(text));
  const int64_t index = key.integer < 0 ? key.integer + length : key.integer;
  if (index < 0 || index >= length) return false;
  if (is_list) {
    out = sequence_of(value).items[static_cast<size_t>(index)];
    return true;
  }
  run.step(1 + text.size() / 256);
  const size_t at = byte_of_character(text, static_cast<size_t>(index));
  out = run.string(text_of(value).slice(at, at + code_point_at(text, at).bytes),
                   string_of(value).markup);
  return true;
}

Value missing(const Value& value, std::string_view name) {
  return undefined_value(cat("'", type_name(value), "' object has no attribute '", name, "'"));
}

/// The byte at which each character begins, and the size.
std::vector<size_t> character_bytes(std::string_view text) {
  std::vector<size_t> bytes;
  for (size_t at = 0; at < text.size(); at += code_point_at(text, at).bytes) bytes.push_back(at);
  bytes.push_back(text.size());
  return bytes;
}

/// One bound of a slice, as Python's slice.indices() settles it.
int64_t settled(Run& run, const Value& bound, int64_t fallback, int64_t length, bool backwards) {
  if (bound.is(Type::kNone)) return fallback;
  if (!bound.is(Type::kInt) && !bound.is(Type::kBool)) {
    run.error("slice indices must be integers or None");
    return 0;
  }
  const int64_t low = backwards ? -1 : 0;
  const int64_t high = backwards ? length - 1 : length;
  if (bound.integer < 0) return std::max(bound.integer + length, low);
  return std::min(bound.integer, high);
}

}  // namespace

Value function_value(std::string name, Value self) {
  auto function = std::make_shared<FunctionObject>();
  function->name = std::move(name);
  function->self = std::move(self);
  Value value;
  value.type = Type::kFunction;
  value.object = std::move(function);
  return value;
}

Value attribute_of(Run& run, const Value& value, const std::string& name) {
  if (value.is(Type::kUndefined)) return run.error(undefined_reason(value));
  Value out;
  if (python_attribute(value, name, out)) return out;
  if (value.is(Type::kDict)) {
    if (const Value* found = dict_of(value).find(name)) return *found;
  }
  return missing(value, name);
}

Value item_of(Run& run, const Value& value, const Value& key) {
  if (value.is(Type::kUndefined)) return run.error(undefined_reason(value));
  Value out;
  if (python_item(run, value, key, out)) return out;
  if (!key.is(Type::kString)) return undefined_value(cat(type_name(value), " has no such element"));
  const std::string name(view_of(key));
  if (python_attribute(value, name, out)) return out;
  return missing(value, name);
}

Value slice_of(Run& run, const Value& value, const Value& start, const Value& stop,
               const Value& step) {
  const bool is_string = value.is(Type::kString);
  const bool is_range = value.is(Type::kView) && sequence_of(value).is_range;
  if (value.is(Type::kUndefined)) return run.error(undefined_reason(value));
  if (!is_string && !is_range && !value.is(Type::kList) && !value.is(Type::kTuple))
    return run.error(cat("'", type_name(value), "' object cannot be sliced"));
  const int64_t stride = step.is(Type::kNone) ? 1 : step.integer;
  if (!step.is(Type::kNone) && (!step.is(Type::kInt) || stride == 0))
    return run.error("slice step must be an integer that is not zero, or None");
  const Text* const text = is_string ? &text_of(value) : nullptr;
  const std::vector<size_t> bytes =
      is_string ? character_bytes(text->view()) : std::vector<size_t>();
  const auto length =
      static_cast<int64_t>(is_string ? bytes.size() - 1 : sequence_of(value).items.size());
  const int64_t first = settled(run, start, stride > 0 ? 0 : length - 1, length, stride < 0);
  const int64_t last = settled(run, stop, stride > 0 ? length : -1, length, stride < 0);
  if (!run.step(1 + static_cast<size_t>(length) / 256)) return {};
  if (is_string && stride == 1) {
    return run.string(text->slice(bytes[static_cast<size_t>(first)],
                                  bytes[static_cast<size_t>(std::max(first, last))]),
                      string_of(value).markup);
  }
  Text part;
  std::vector<Value> items;
  for (int64_t i = first; (stride > 0 ? i < last : i > last) && run.step(); i += stride) {
    const auto index = static_cast<size_t>(i);
    if (is_string) {
      part.append(*text, bytes[index], bytes[index + 1]);
    } else {
      items.push_back(sequence_of(value).items[index]);
    }
    if (stride > length || -stride > length) break;
  }
  if (is_string) return run.string(std::move(part), string_of(value).markup);
  return sequence_value(is_range ? Type::kList : value.type, std::move(items), value.from_request);
}

}  // namespace shoal::jinja
