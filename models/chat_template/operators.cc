#include "models/chat_template/operators.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/chat_template/percent_format.h"
#include "models/chat_template/spelling.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

bool is_sequence(const Value& value) {
  return value.is(Type::kList) || value.is(Type::kTuple);
}

Value unsupported(Run& run, std::string_view op, const Value& a, const Value& b) {
  for (const Value* side : {&a, &b})
    if (side->is(Type::kUndefined)) return run.error(undefined_reason(*side));
  return run.error(
      cat("unsupported operand types for ", op, ": ", type_name(a), " and ", type_name(b)));
}

Value too_large(Run& run) {
  return run.fail(FailureKind::kLimit, "an integer does not fit into 64 bits");
}

Value integer_power(Run& run, int64_t base, int64_t exponent, bool origin) {
  if (exponent < 0) {
    if (base == 0) return run.error("0.0 cannot be raised to a negative power");
    return float_value(std::pow(static_cast<double>(base), static_cast<double>(exponent)), origin);
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return too_large(run);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return too_large(run);
  }
  return int_value(result, origin);
}

Value integer_operation(Run& run, std::string_view op, int64_t a, int64_t b, bool origin) {
  int64_t result = 0;
  if (op == "**") return integer_power(run, a, b, origin);
  if (op == "+" || op == "-" || op == "*") {
    const bool overflows = op == "+"   ? __builtin_add_overflow(a, b, &result)
                           : op == "-" ? __builtin_sub_overflow(a, b, &result)
                                       : __builtin_mul_overflow(a, b, &result);
    return overflows ? too_large(run) : int_value(result, origin);
  }
  if (b == 0) return run.error("division by zero");
  if (op == "/") return float_value(static_cast<double>(a) / static_cast<double>(b), origin);
  if (a == INT64_MIN && b == -1) return op == "//" ? too_large(run) : int_value(0, origin);
  const int64_t rest = a % b;
  const bool rounds_down = rest != 0 && (rest < 0) != (b < 0);
  if (op == "//") return int_value(a / b - (rounds_down ? 1 : 0), origin);
  return int_value(rounds_down ? rest + b : rest, origin);
}

Value float_operation(Run& run, std::string_view op, double a, double b, bool origin) {
  if (op == "+") return float_value(a + b, origin);
  if (op == "-") return float_value(a - b, origin);
  if (op == "*") return float_value(a * b, origin);
  if (op == "**") {
    const double power = std::pow(a, b);
    if (std::isnan(power) && !std::isnan(a) && !std::isnan(b))
      return run.fail(FailureKind::kLimit, "complex numbers are not supported");
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b))
      return run.error("the result of ** is too large, or a division by zero");
    return float_value(power, origin);
  }
  if (b == 0) return run.error("float division by zero");
  if (op == "/") return float_value(a / b, origin);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return float_value(rest == 0 ? std::copysign(0.0, b) : rest, origin);
  const double quotient = (a - rest) / b;
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return float_value(quotient == 0 ? std::copysign(0.0, a / b) : whole, origin);
}

Value repeat(Run& run, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (value.is(Type::kString)) {
    const Text& text = text_of(value);
    if (!text.empty() && times > run.limits().max_string_bytes / text.size())
      return run.fail(FailureKind::kLimit, "a string is repeated too often");
    Text out;
    for (size_t i = 0; i < times && !text.empty(); ++i) out.append(text);
    return run.string(std::move(out), string_of(value).markup);
  }
  const auto& items = sequence_of(value).items;
  if (!items.empty() && times > run.limits().max_steps / items.size())
    return run.fail(FailureKind::kLimit, "a list is repeated too often");
  if (!run.step(times * items.size())) return {};
  std::vector<Value> all;
  for (size_t i = 0; i < times && !items.empty(); ++i)
    all.insert(all.end(), items.begin(), items.end());
  return sequence_value(value.type, std::move(all), value.from_request);
}

Value concatenate(Run& run, const Value& a, const Value& b) {
  if (a.is(Type::kString) && b.is(Type::kString)) {
    const bool markup = string_of(a).markup || string_of(b).markup;
    Text text = markup && !string_of(a).markup ? html_escaped(text_of(a)) : text_of(a);
    text.append(markup && !string_of(b).markup ? html_escaped(text_of(b)) : text_of(b));
    return run.string(std::move(text), markup);
  }
  if (a.type != b.type || !is_sequence(a)) return unsupported(run, "+", a, b);
  std::vector<Value> items = sequence_of(a).items;
  const auto& more = sequence_of(b).items;
  if (!run.step(items.size() + more.size())) return {};
  items.insert(items.end(), more.begin(), more.end());
  return sequence_value(a.type, std::move(items), a.from_request || b.from_request);
}

/// -1, 0 or 1, or 2 if a float is not a number.
int order_numbers(const Value& a, const Value& b) {
  if (a.type == Type::kFloat || b.type == Type::kFloat) {
    const double x = a.as_double(), y = b.as_double();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  return a.integer < b.integer ? -1 : a.integer > b.integer ? 1 : 0;
}

int order(Run& run, std::string_view op, const Value& a, const Value& b) {
  if (!run.step(weight_of(a))) return 0;
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.is(Type::kString) && b.is(Type::kString)) {
    // UTF-8 sorts like the characters that it encodes.
    const int result = view_of(a).compare(view_of(b));
    return result < 0 ? -1 : result > 0 ? 1 : 0;
  }
  if (a.type != b.type || !is_sequence(a)) {
    unsupported(run, op, a, b);
    return 0;
  }
  const auto& x = sequence_of(a).items;
  const auto& y = sequence_of(b).items;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i)
    if (!equal(x[i], y[i])) return order(run, op, x[i], y[i]);
  return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
}

}  // namespace

Text html_escaped(const Text& text) {
  constexpr std::string_view kMarks = "&<>'\"";
  static constexpr std::string_view kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  Text out;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t mark = kMarks.find(text.bytes()[at]);
    if (mark == std::string_view::npos) {
      out.append(text, at, at + 1);
    } else {
      out.append(kEscapes[mark], text.is_from_request(at));
    }
  }
  return out;
}

Value binary_operation(Run& run, std::string_view op, const Value& a, const Value& b) {
  const bool origin = a.from_request || b.from_request;
  if (op == "%" && a.is(Type::kString)) return percent_format(run, a, b);
  if (a.is_number() && b.is_number()) {
    if (a.type == Type::kFloat || b.type == Type::kFloat)
      return float_operation(run, op, a.as_double(), b.as_double(), origin);
    return integer_operation(run, op, a.integer, b.integer, origin);
  }
  if (op == "+") return concatenate(run, a, b);
  const auto is_count = [](const Value& v) { return v.is(Type::kInt) || v.is(Type::kBool); };
  const auto repeats = [&](const Value& v) { return v.is(Type::kString) || is_sequence(v); };
  if (op == "*" && repeats(a) && is_count(b)) return repeat(run, a, b.integer);
  if (op == "*" && repeats(b) && is_count(a)) return repeat(run, b, a.integer);
  return unsupported(run, op, a, b);
}

Value unary_operation(Run& run, std::string_view op, const Value& operand) {
  if (!operand.is_number()) return unsupported(run, op, operand, operand);
  if (operand.type == Type::kFloat)
    return float_value(op == "-" ? -operand.number : operand.number, operand.from_request);
  if (operand.integer == INT64_MIN && op == "-") return too_large(run);
  return int_value(op == "-" ? -operand.integer : operand.integer, operand.from_request);
}

bool step_to_find(Run& run, const DictObject& dict, const Value& key) {
  return run.step(weight_of(key) * (key.is(Type::kString) ? 1 : 1 + dict.items.size()));
}

bool contains(Run& run, const Value& container, const Value& item) {
  if (container.is(Type::kString)) {
    if (!item.is(Type::kString)) {
      run.error(cat("'in <string>' requires a string as left operand, not ", type_name(item)));
      return false;
    }
    run.step(1 + text_of(container).size() / 256);
    return find_in(view_of(container), view_of(item)) != std::string_view::npos;
  }
  if (container.is(Type::kDict)) {
    if (!step_to_find(run, dict_of(container), item)) return false;
    if (!is_hashable(item)) run.error(cat("unhashable type: '", type_name(item), "'"));
    return dict_of(container).find(item) != nullptr;
  }
  for (const Value& candidate : items_of(run, container)) {
    if (!run.step(weight_of(candidate))) return false;
    if (equal(candidate, item)) return true;
  }
  return false;
}

bool compare(Run& run, std::string_view op, const Value& a, const Value& b) {
  if (!run.step(weight_of(a))) return false;
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(run, b, a);
  if (op == "not in") return !contains(run, b, a);
  const int result = order(run, op, a, b);
  if (result == 2) return false;
  if (op == "<") return result < 0;
  if (op == "<=") return result <= 0;
  if (op == ">") return result > 0;
  return result >= 0;
}

std::vector<size_t> sorted_order(Run& run, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> indices(keys.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  // A failure or a NaN makes the comparison inconsistent, which std::stable_sort allows no more
  // than std::sort, but a merge sort that only asks "is less" stays inside its range.
  std::stable_sort(indices.begin(), indices.end(), [&](size_t x, size_t y) {
    if (!run.ok()) return false;
    const int result =
        reverse ? order(run, "<", keys[y], keys[x]) : order(run, "<", keys[x], keys[y]);
    return result == -1;
  });
  return indices;
}

bool is_iterable(const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kView:
    case Type::kDict:
    case Type::kGenerator:
      return true;
    default:
      return false;
  }
}

std::vector<Value> items_of(Run& run, const Value& value) {
  std::vector<Value> items;
  switch (value.type) {
    case Type::kUndefined:
      break;
    case Type::kString: {
      const Text& text = text_of(value);
      for (size_t at = 0; at < text.size() && run.step();) {
        const size_t end = at + code_point_at(text.view(), at).bytes;
        items.push_back(run.string(text.slice(at, end)));
        at = end;
      }
      break;
    }
    case Type::kList:
    case Type::kTuple:
    case Type::kView:
      items = sequence_of(value).items;
      break;
    case Type::kDict:
      for (const auto& [key, item] : dict_of(value).items) items.push_back(key);
      break;
    case Type::kGenerator: {
      auto& generator = static_cast<GeneratorObject&>(*value.object);
      items = std::exchange(generator.items, {});
      break;
    }
    default:
      run.error(cat("'", type_name(value), "' object is not iterable"));
  }
  run.step(items.size());
  return items;
}

int64_t length_of(Run& run, const Value& value) {
  switch (value.type) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      return static_cast<int64_t>(count_characters(view_of(value)));
    case Type::kList:
    case Type::kTuple:
    case Type::kView:
      return static_cast<int64_t>(sequence_of(value).items.size());
    case Type::kDict:
      return static_cast<int64_t>(dict_of(value).items.size());
    default:
      break;
  }
  run.error(cat("object of type '", type_name(value), "' has no len()"));
  return -1;
}

}  // namespace shoal::jinja
