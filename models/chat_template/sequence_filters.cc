#include "models/chat_template/sequence_filters.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "models/chat_template/attributes.h"
#include "models/chat_template/filters.h"
#include "models/chat_template/letter_case.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/spelling.h"
#include "models/chat_template/string_parts.h"
#include "models/chat_template/value_tests.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

Value generator_value(std::vector<Value> items) {
  auto generator = std::make_shared<GeneratorObject>();
  generator->items = std::move(items);
  Value value;
  value.type = Type::kGenerator;
  value.object = std::move(generator);
  return value;
}

/// What an attribute such as "function.name" or "0" of an item is.
class AttributePath {
 public:
  AttributePath(Run& run, const Value* attribute) : run_(run) {
    if (attribute == nullptr || attribute->is(Type::kNone)) return;
    if (!attribute->is(Type::kString)) {
      parts_.push_back(*attribute);
      return;
    }
    const Text& path = text_of(*attribute);
    for (const Text& part : split_at(run, path, ".", -1, false)) {
      int64_t index = 0;
      const char* const end = part.view().data() + part.size();
      const auto [rest, error] = std::from_chars(part.view().data(), end, index);
      const bool is_index = !part.empty() && error == std::errc() && rest == end && index >= 0;
      parts_.push_back(is_index ? int_value(index) : run.string(part));
    }
  }

  Value of(Value item, const Value* fallback = nullptr) const {
    for (const Value& part : parts_) {
      item = item_of(run_, item, part);
      if (fallback != nullptr && !fallback->is(Type::kNone) && item.is(Type::kUndefined))
        item = *fallback;
    }
    return item;
  }

 private:
  Run& run_;
  std::vector<Value> parts_;
};

Value without_case(Run& run, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Type::kString)) return value;
  return run.string(to_lower(text_of(value)));
}

Value filter_join(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "join", arguments, "d attribute");
  const AttributePath path(run, given.find("attribute"));
  const Value* separator = given.find("d");
  std::vector<Text> parts;
  size_t bytes = 0;
  for (const Value& item : items_of(run, value)) {
    if (!run.step()) return {};
    parts.push_back(str_text(run, path.of(item)));
    bytes += parts.back().size();
    if (bytes > run.limits().max_string_bytes) break;  // joined() refuses it
  }
  return joined(run, separator == nullptr ? Text() : str_text(run, *separator), parts);
}

Value filter_items(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "items", arguments, "");
  std::vector<Value> pairs;
  if (value.is(Type::kUndefined)) return generator_value({});
  if (!value.is(Type::kDict)) return run.error("can only get item pairs from a mapping");
  for (const auto& [key, item] : dict_of(value).items)
    pairs.push_back(sequence_value(Type::kTuple, {key, item}, value.from_request));
  return generator_value(std::move(pairs));
}

Value filter_list(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "list", arguments, "");
  return sequence_value(Type::kList, items_of(run, value), value.from_request);
}

Value filter_first(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "first", arguments, "");
  if (value.is(Type::kGenerator)) {
    auto& items = static_cast<GeneratorObject&>(*value.object).items;
    if (items.empty()) return undefined_value("no first item, the sequence was empty");
    Value first = items.front();
    items.erase(items.begin());
    return first;
  }
  const std::vector<Value> items = items_of(run, value);
  return items.empty() ? undefined_value("no first item, the sequence was empty") : items.front();
}

Value filter_last(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "last", arguments, "");
  if (value.is(Type::kGenerator)) return run.error("a generator cannot be reversed");
  const std::vector<Value> items = items_of(run, value);
  return items.empty() ? undefined_value("no last item, the sequence was empty") : items.back();
}

Value filter_reverse(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "reverse", arguments, "");
  if (value.is(Type::kString))
    return slice_of(run, value, none_value(), none_value(), int_value(-1));
  std::vector<Value> items = items_of(run, value);
  std::reverse(items.begin(), items.end());
  return generator_value(std::move(items));
}

Value filter_map(Run& run, const Value& value, const Arguments& arguments) {
  std::vector<Value> results;
  if (!is_true(value)) return generator_value({});
  if (arguments.positional.empty()) {
    Signature given(run, "map", arguments, "attribute default");
    const Value attribute = given.need("attribute");
    const AttributePath path(run, &attribute);
    for (const Value& item : items_of(run, value)) {
      if (!run.step()) return {};
      results.push_back(path.of(item, given.find("default")));
    }
    return generator_value(std::move(results));
  }
  const Value name = arguments.positional[0];
  if (!name.is(Type::kString)) return run.error("map: the name of a filter must be a string");
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()},
                       arguments.keywords};
  for (const Value& item : items_of(run, value)) {
    if (!run.step()) return {};
    results.push_back(call_filter(run, view_of(name), item, rest));
  }
  return generator_value(std::move(results));
}

/// select, reject, selectattr and rejectattr.
template <bool Wanted, bool OfAttribute>
Value filter_choose(Run& run, const Value& value, const Arguments& arguments) {
  if (!is_true(value)) return generator_value({});
  const size_t used = OfAttribute ? 1 : 0;
  if (arguments.positional.size() < used)
    return run.error("selectattr and rejectattr need the name of an attribute");
  const AttributePath path(run, OfAttribute ? &arguments.positional[0] : nullptr);
  const bool has_test = arguments.positional.size() > used;
  Arguments rest;
  if (has_test) {
    if (!arguments.positional[used].is(Type::kString))
      return run.error("the name of a test must be a string");
    rest = {{arguments.positional.begin() + static_cast<std::ptrdiff_t>(used) + 1,
             arguments.positional.end()},
            arguments.keywords};
  }
  std::vector<Value> chosen;
  for (const Value& item : items_of(run, value)) {
    if (!run.step()) return {};
    const Value subject = path.of(item);
    const bool truth = has_test ? call_test(run, view_of(arguments.positional[used]), subject, rest)
                                : is_true(subject);
    if (truth == Wanted) chosen.push_back(item);
  }
  return generator_value(std::move(chosen));
}

Value filter_dictsort(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "dictsort", arguments, "case_sensitive by reverse");
  if (!value.is(Type::kDict)) return run.error("dictsort: the value must be a dict");
  const Value* by = given.find("by");
  const std::string_view column = by == nullptr ? "key" : by->is(Type::kString) ? view_of(*by) : "";
  if (column != "key" && column != "value")
    return run.error("dictsort: 'by' must be \"key\" or \"value\"");
  const auto& items = dict_of(value).items;
  std::vector<Value> keys;
  for (const auto& [key, item] : items)
    keys.push_back(
        without_case(run, column == "key" ? key : item, given.flag("case_sensitive", false)));
  std::vector<Value> pairs;
  for (const size_t i : sorted_order(run, keys, given.flag("reverse", false)))
    pairs.push_back(
        sequence_value(Type::kTuple, {items[i].first, items[i].second}, value.from_request));
  return sequence_value(Type::kList, std::move(pairs), value.from_request);
}

Value filter_sort(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "sort", arguments, "reverse case_sensitive attribute");
  const Value* attribute = given.find("attribute");
  std::vector<AttributePath> paths;
  if (attribute != nullptr && attribute->is(Type::kString)) {
    for (const Text& part : split_at(run, text_of(*attribute), ",", -1, false)) {
      const Value path = run.string(part);
      paths.emplace_back(run, &path);
    }
  } else {
    paths.emplace_back(run, attribute);
  }
  const std::vector<Value> items = items_of(run, value);
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const AttributePath& path : paths)
      key.push_back(without_case(run, path.of(item), given.flag("case_sensitive", false)));
    if (!run.step()) return {};
    keys.push_back(sequence_value(Type::kList, std::move(key)));
  }
  std::vector<Value> sorted;
  for (const size_t i : sorted_order(run, keys, given.flag("reverse", false)))
    sorted.push_back(items[i]);
  return sequence_value(Type::kList, std::move(sorted), value.from_request);
}

Value filter_unique(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "unique", arguments, "case_sensitive attribute");
  const AttributePath path(run, given.find("attribute"));
  std::vector<Value> chosen;
  DictObject seen;
  for (const Value& item : items_of(run, value)) {
    const Value key = without_case(run, path.of(item), given.flag("case_sensitive", false));
    if (!step_to_find(run, seen, key)) return {};
    if (!is_hashable(key)) return run.error(cat("unhashable type: '", type_name(key), "'"));
    if (seen.find(key) != nullptr) continue;
    seen.set(key, none_value());
    chosen.push_back(item);
  }
  return generator_value(std::move(chosen));
}

template <bool Largest>
Value filter_extreme(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, Largest ? "max" : "min", arguments, "case_sensitive attribute");
  const AttributePath path(run, given.find("attribute"));
  const std::vector<Value> items = items_of(run, value);
  if (items.empty()) return undefined_value("no item, the sequence was empty");
  Value best = items[0], best_key;
  for (size_t i = 0; i < items.size() && run.step(); ++i) {
    const Value key = without_case(run, path.of(items[i]), given.flag("case_sensitive", false));
    if (i == 0 || compare(run, Largest ? ">" : "<", key, best_key)) {
      best = items[i];
      best_key = key;
    }
  }
  return best;
}

Value filter_sum(Run& run, const Value& value, const Arguments& arguments) {
  const Signature given(run, "sum", arguments, "attribute start");
  const AttributePath path(run, given.find("attribute"));
  const Value* start = given.find("start");
  Value total = start == nullptr ? int_value(0) : *start;
  if (total.is(Type::kString)) return run.error("sum() can't sum strings");
  for (const Value& item : items_of(run, value)) {
    if (!run.step()) return {};
    total = binary_operation(run, "+", total, path.of(item));
  }
  return total;
}

using SequenceFilter = Value (*)(Run&, const Value&, const Arguments&);

constexpr std::pair<std::string_view, SequenceFilter> kSequenceFilters[] = {
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {"reject", filter_choose<false, false>},
    {"rejectattr", filter_choose<false, true>},
    {"reverse", filter_reverse},
    {"select", filter_choose<true, false>},
    {"selectattr", filter_choose<true, true>},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

const std::pair<std::string_view, SequenceFilter>* find_sequence_filter(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kSequenceFilters), std::end(kSequenceFilters),
                                         [&](const auto& row) { return row.first == name; });
  return found == std::end(kSequenceFilters) ? nullptr : found;
}

}  // namespace

bool is_sequence_filter(std::string_view name) {
  return find_sequence_filter(name) != nullptr;
}

Value call_sequence_filter(Run& run, std::string_view name, const Value& value,
                           const Arguments& arguments) {
  const auto* const filter = find_sequence_filter(name);
  return filter == nullptr ? Value() : filter->second(run, value, arguments);
}

}  // namespace shoal::jinja
