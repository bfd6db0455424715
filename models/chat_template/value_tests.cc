#include "models/chat_template/value_tests.h"

#include <algorithm>

#include "models/chat_template/filters.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/spelling.h"
#include "models/chat_template/string_methods.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

/// Tests without arguments.
using Predicate = bool (*)(const Value&);

bool has_length_and_items(const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
      return true;
    case Type::kView:
      return sequence_of(value).is_range;
    default:
      return false;
  }
}

constexpr std::pair<std::string_view, Predicate> kPredicates[] = {
    {"defined", [](const Value& v) { return !v.is(Type::kUndefined); }},
    {"undefined", [](const Value& v) { return v.is(Type::kUndefined); }},
    {"none", [](const Value& v) { return v.is(Type::kNone); }},
    {"boolean", [](const Value& v) { return v.is(Type::kBool); }},
    {"true", [](const Value& v) { return v.is(Type::kBool) && v.integer != 0; }},
    {"false", [](const Value& v) { return v.is(Type::kBool) && v.integer == 0; }},
    {"integer", [](const Value& v) { return v.is(Type::kInt); }},
    {"float", [](const Value& v) { return v.is(Type::kFloat); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"string", [](const Value& v) { return v.is(Type::kString); }},
    {"mapping", [](const Value& v) { return v.is(Type::kDict); }},
    {"sequence", has_length_and_items},
    {"iterable", [](const Value& v) { return is_iterable(v) || v.is(Type::kLoop); }},
    {"callable", [](const Value& v) { return v.is(Type::kFunction) || v.is(Type::kUndefined); }},
    {"escaped", [](const Value& v) { return v.is(Type::kString) && string_of(v).markup; }},
};

/// Tests with one argument that are operators.
constexpr std::pair<std::string_view, std::string_view> kComparisons[] = {
    {"==", "=="},      {"eq", "=="}, {"equalto", "=="}, {"!=", "!="},
    {"ne", "!="},      {">", ">"},   {"gt", ">"},       {"greaterthan", ">"},
    {">=", ">="},      {"ge", ">="}, {"<", "<"},        {"lt", "<"},
    {"lessthan", "<"}, {"<=", "<="}, {"le", "<="},      {"in", "in"},
};

constexpr std::string_view kOthers[] = {"odd",   "even",  "divisibleby", "sameas",
                                        "lower", "upper", "filter",      "test"};

template <typename Table>
auto find_row(const Table& table, std::string_view name) {
  return std::find_if(std::begin(table), std::end(table),
                      [&](const auto& row) { return row.first == name; });
}

bool is_same(const Value& a, const Value& b) {
  if (a.type != b.type) return false;
  if (a.is(Type::kNone)) return true;
  return a.is_number() ? equal(a, b) : a.object == b.object;
}

bool leaves(Run& run, const Value& value, const Value& divisor, int64_t wanted) {
  const Value rest = binary_operation(run, "%", value, divisor);
  return run.ok() && equal(rest, int_value(wanted));
}

bool other_test(Run& run, std::string_view name, const Value& value, const Arguments& arguments) {
  const bool has_argument = name == "divisibleby" || name == "sameas";
  Signature given(run, name, arguments, has_argument ? "other" : "");
  const Value other = has_argument ? given.need("other") : Value();
  if (!run.ok()) return false;
  if (name == "odd") return leaves(run, value, int_value(2), 1);
  if (name == "even") return leaves(run, value, int_value(2), 0);
  if (name == "divisibleby") return leaves(run, value, other, 0);
  if (name == "sameas") return is_same(value, other);
  if (name == "filter") return value.is(Type::kString) && is_filter(view_of(value));
  if (name == "test") return value.is(Type::kString) && is_test(view_of(value));
  const Value text = run.string(str_text(run, value));
  return run.ok() &&
         is_true(call_string_method(run, name == "lower" ? "islower" : "isupper", text, {}));
}

}  // namespace

bool is_test(std::string_view name) {
  return find_row(kPredicates, name) != std::end(kPredicates) ||
         find_row(kComparisons, name) != std::end(kComparisons) ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

bool call_test(Run& run, std::string_view name, const Value& value, const Arguments& arguments) {
  if (const auto* const row = find_row(kPredicates, name); row != std::end(kPredicates)) {
    if (!arguments.empty()) run.error(cat("the test '", name, "' takes no argument"));
    return row->second(value);
  }
  if (const auto* const row = find_row(kComparisons, name); row != std::end(kComparisons)) {
    Signature given(run, name, arguments, "other");
    const Value other = given.need("other");
    return run.ok() && compare(run, row->second, value, other);
  }
  if (is_test(name)) return other_test(run, name, value, arguments);
  run.error(cat("there is no test named '", name, "'"));
  return false;
}

}  // namespace shoal::jinja
