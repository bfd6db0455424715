#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/chat_template/text.h"

namespace shoal::jinja {

enum class Type {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kView,  ///< what range() and the methods of a dict give: a sequence with a spelling of its own
  kDict,
  kNamespace,  ///< the only object that a template can change
  kGenerator,  ///< what filters such as map give: it can be walked through once
  kFunction,
  kLoop,
};

struct Object {
  virtual ~Object() = default;
};

/// A value of a template: Python's types as far as chat templates use them. Everything but a
/// namespace and a generator is immutable, so that copies share their content.
struct Value {
  Type type = Type::kUndefined;
  /// The value came from the request, or was computed from such a value. It decides the origin of
  /// the characters that spell the value; those of a string have an origin of their own.
  bool from_request = false;
  int64_t integer = 0;  ///< kInt, and kBool as 0 or 1
  double number = 0;    ///< kFloat
  std::shared_ptr<Object> object;

  bool is(Type other) const { return type == other; }
  bool is_number() const {
    return type == Type::kInt || type == Type::kFloat || type == Type::kBool;
  }
  double as_double() const { return type == Type::kFloat ? number : static_cast<double>(integer); }
};

struct StringObject : Object {
  Text text;
  bool markup = false;  ///< Markup: the filter `safe` was applied
  /// The bytes of all strings that live; null for strings that outlive a rendering.
  std::shared_ptr<size_t> live_bytes;
  ~StringObject() override;
};

struct SequenceObject : Object {
  std::vector<Value> items;
  std::string prefix;  ///< kView: what is printed before the list, for example "dict_keys("
  bool is_range = false;
  int depth = 1;      ///< nesting; bounded, because containers are walked and freed by recursion
  size_t weight = 1;  ///< weight_of()
};

struct DictObject : Object {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  size_t weight = 1;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// Adds or replaces; the position of a key that is replaced stays.
  void set(const Value& key, Value value);

 private:
  std::unordered_map<std::string, size_t> strings_;  // where the string keys are
};

struct NamespaceObject : Object {
  DictObject attributes;
};

struct GeneratorObject : Object {
  std::vector<Value> items;
  size_t next = 0;
};

/// The deepest nesting of lists and dicts.
inline constexpr int kMaxNesting = 100;
/// The greatest weight of a value. The largest chat that HTTP takes weighs about a quarter of it.
inline constexpr size_t kMaxWeight = 4'000'000;

Value none_value();
Value bool_value(bool value, bool from_request = false);
Value int_value(int64_t value, bool from_request = false);
Value float_value(double value, bool from_request = false);
/// A string that is not counted; for constants and for values that are made before a rendering.
Value constant_string(Text text);
Value undefined_value(std::string why);

// Preconditions: the type fits.
const StringObject& string_of(const Value& value);
const Text& text_of(const Value& value);
std::string_view view_of(const Value& value);
const SequenceObject& sequence_of(const Value& value);  ///< kList, kTuple, kView
const DictObject& dict_of(const Value& value);
NamespaceObject& namespace_of(const Value& value);
/// Why an undefined value is undefined.
std::string undefined_reason(const Value& value);

int nesting_of(const Value& value);
/// About how many steps it costs to compare the value with another one: 1 for a value, and 1 more
/// for each 256 bytes of a string. A list or dict costs the sum of the values in it. A value that
/// is in it twice counts twice, because a comparison walks it twice. The result is at most
/// kMaxWeight + 1.
size_t weight_of(const Value& value);
/// A list or tuple. One that is nested too deeply becomes an undefined value.
Value sequence_value(Type type, std::vector<Value> items, bool from_request = false);
Value view_value(std::string prefix, std::vector<Value> items, bool from_request);
Value dict_value(DictObject dict, bool from_request = false);

/// Python's bool(), == and hashability.
bool is_true(const Value& value);
bool equal(const Value& a, const Value& b);
bool is_hashable(const Value& value);
/// The name of Python's type, for messages.
std::string type_name(const Value& value);

}  // namespace shoal::jinja
