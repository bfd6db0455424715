#include "models/chat_template/value.h"

#include <algorithm>
#include <cmath>

namespace shoal::jinja {
namespace {

struct UndefinedObject : Object {
  std::string why;
};

/// Compares an integer with a double exactly, as Python does.
bool int_equals_double(int64_t integer, double number) {
  return std::floor(number) == number && number >= -9223372036854775808.0 &&
         number < 9223372036854775808.0 && static_cast<int64_t>(number) == integer;
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.type == Type::kFloat && b.type == Type::kFloat) return a.number == b.number;
  if (a.type == Type::kFloat) return int_equals_double(b.integer, a.number);
  if (b.type == Type::kFloat) return int_equals_double(a.integer, b.number);
  return a.integer == b.integer;
}

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Value& x, const Value& y) { return equal(x, y); });
}

bool equal_dicts(const DictObject& a, const DictObject& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.find(item.first);
    return other != nullptr && equal(item.second, *other);
  });
}

size_t with_weight(size_t weight, size_t more) {
  return std::min(weight + more, kMaxWeight + 1);
}

Value object_value(Type type, std::shared_ptr<Object> object, bool from_request) {
  Value value;
  value.type = type;
  value.from_request = from_request;
  value.object = std::move(object);
  return value;
}

}  // namespace

StringObject::~StringObject() {
  if (live_bytes != nullptr) *live_bytes -= text.size();
}

const Value* DictObject::find(std::string_view key) const {
  const auto found = strings_.find(std::string(key));
  return found == strings_.end() ? nullptr : &items[found->second].second;
}

const Value* DictObject::find(const Value& key) const {
  if (key.is(Type::kString)) return find(view_of(key));
  for (const auto& [known, value] : items) {
    if (!known.is(Type::kString) && equal(known, key)) return &value;
  }
  return nullptr;
}

void DictObject::set(const Value& key, Value value) {
  depth = std::max(depth, 1 + nesting_of(value));
  weight = with_weight(with_weight(weight, weight_of(key)), weight_of(value));
  if (!key.is(Type::kString))
    weight = with_weight(weight, items.size());  // find() asks all of them
  if (const Value* known = find(key)) {
    *const_cast<Value*>(known) = std::move(value);
    return;
  }
  if (key.is(Type::kString)) strings_.emplace(view_of(key), items.size());
  items.emplace_back(key, std::move(value));
}

Value none_value() {
  Value value;
  value.type = Type::kNone;
  return value;
}

Value bool_value(bool truth, bool from_request) {
  Value value;
  value.type = Type::kBool;
  value.integer = truth ? 1 : 0;
  value.from_request = from_request;
  return value;
}

Value int_value(int64_t integer, bool from_request) {
  Value value;
  value.type = Type::kInt;
  value.integer = integer;
  value.from_request = from_request;
  return value;
}

Value float_value(double number, bool from_request) {
  Value value;
  value.type = Type::kFloat;
  value.number = number;
  value.from_request = from_request;
  return value;
}

Value constant_string(Text text) {
  auto string = std::make_shared<StringObject>();
  string->text = std::move(text);
  return object_value(Type::kString, std::move(string), false);
}

Value undefined_value(std::string why) {
  auto undefined = std::make_shared<UndefinedObject>();
  undefined->why = std::move(why);
  return object_value(Type::kUndefined, std::move(undefined), false);
}

const StringObject& string_of(const Value& value) {
  return static_cast<const StringObject&>(*value.object);
}

const Text& text_of(const Value& value) {
  return string_of(value).text;
}

std::string_view view_of(const Value& value) {
  return text_of(value).view();
}

const SequenceObject& sequence_of(const Value& value) {
  return static_cast<const SequenceObject&>(*value.object);
}

const DictObject& dict_of(const Value& value) {
  return static_cast<const DictObject&>(*value.object);
}

NamespaceObject& namespace_of(const Value& value) {
  return static_cast<NamespaceObject&>(*value.object);
}

std::string undefined_reason(const Value& value) {
  if (value.object == nullptr) return "the value is undefined";
  return static_cast<const UndefinedObject&>(*value.object).why;
}

int nesting_of(const Value& value) {
  switch (value.type) {
    case Type::kList:
    case Type::kTuple:
    case Type::kView:
      return sequence_of(value).depth;
    case Type::kDict:
      return dict_of(value).depth;
    case Type::kGenerator: {
      int depth = 0;
      for (const Value& item : static_cast<const GeneratorObject&>(*value.object).items)
        depth = std::max(depth, nesting_of(item));
      return depth + 1;
    }
    default:
      return 0;
  }
}

size_t weight_of(const Value& value) {
  switch (value.type) {
    case Type::kList:
    case Type::kTuple:
    case Type::kView:
      return sequence_of(value).weight;
    case Type::kDict:
      return dict_of(value).weight;
    case Type::kString:
      return 1 + text_of(value).size() / 256;
    default:
      return 1;
  }
}

Value sequence_value(Type type, std::vector<Value> items, bool from_request) {
  auto sequence = std::make_shared<SequenceObject>();
  for (const Value& item : items) {
    sequence->depth = std::max(sequence->depth, 1 + nesting_of(item));
    sequence->weight = with_weight(sequence->weight, weight_of(item));
  }
  if (sequence->depth > kMaxNesting) return undefined_value("a list is nested too deeply");
  sequence->items = std::move(items);
  return object_value(type, std::move(sequence), from_request);
}

Value view_value(std::string prefix, std::vector<Value> items, bool from_request) {
  Value value = sequence_value(Type::kView, std::move(items), from_request);
  if (value.is(Type::kView)) {
    auto& sequence = static_cast<SequenceObject&>(*value.object);
    sequence.is_range = prefix.starts_with("range(");
    sequence.prefix = std::move(prefix);
  }
  return value;
}

Value dict_value(DictObject dict, bool from_request) {
  if (dict.depth > kMaxNesting) return undefined_value("a dict is nested too deeply");
  return object_value(Type::kDict, std::make_shared<DictObject>(std::move(dict)), from_request);
}

bool is_true(const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return value.integer != 0;
    case Type::kFloat:
      return value.number != 0;
    case Type::kString:
      return !text_of(value).empty();
    case Type::kList:
    case Type::kTuple:
    case Type::kView:
      return !sequence_of(value).items.empty();
    case Type::kDict:
      return !dict_of(value).items.empty();
    default:
      return true;
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      return view_of(a) == view_of(b);
    case Type::kView:
      if (!sequence_of(a).is_range || !sequence_of(b).is_range) return a.object == b.object;
      return equal_items(sequence_of(a).items, sequence_of(b).items);
    case Type::kList:
    case Type::kTuple:
      return equal_items(sequence_of(a).items, sequence_of(b).items);
    case Type::kDict:
      return equal_dicts(dict_of(a), dict_of(b));
    default:
      return a.object == b.object;
  }
}

bool is_hashable(const Value& value) {
  if (value.is(Type::kTuple)) {
    const auto& items = sequence_of(value).items;
    return std::all_of(items.begin(), items.end(), is_hashable);
  }
  return !value.is(Type::kList) && !value.is(Type::kDict) &&
         (!value.is(Type::kView) || sequence_of(value).is_range);
}

std::string type_name(const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "None";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return string_of(value).markup ? "Markup" : "str";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return "tuple";
    case Type::kView: {
      const std::string& prefix = sequence_of(value).prefix;
      return prefix.substr(0, prefix.find('('));
    }
    case Type::kDict:
      return "dict";
    case Type::kNamespace:
      return "Namespace";
    case Type::kGenerator:
      return "generator";
    case Type::kFunction:
      return "function";
    case Type::kLoop:
      return "LoopContext";
  }
  return "object";
}

}  // namespace shoal::jinja
