#pragma once
#include <string_view>
#include <vector>

#include "models/chat_template/run.h"

namespace shoal::jinja {

// Python's operators on values.

/// + - * / // % **
Value binary_operation(Run& run, std::string_view op, const Value& a, const Value& b);
/// + - (not `not`)
Value unary_operation(Run& run, std::string_view op, const Value& operand);
/// == != < <= > >= in, not in
bool compare(Run& run, std::string_view op, const Value& a, const Value& b);
bool contains(Run& run, const Value& container, const Value& item);
/// Counts what it costs to hash the key and to find it. False if the rendering has to stop.
bool step_to_find(Run& run, const DictObject& dict, const Value& key);

/// The order of sorted(keys): stable, and with `reverse` as Python's. Fails if two keys cannot be
/// compared.
std::vector<size_t> sorted_order(Run& run, const std::vector<Value>& keys, bool reverse);

/// The items that a loop walks through. Fails if the value cannot be iterated. A generator is empty
/// afterwards.
std::vector<Value> items_of(Run& run, const Value& value);
bool is_iterable(const Value& value);
/// Python's len(), or -1 after a failure.
int64_t length_of(Run& run, const Value& value);

/// HTML escapes, for Markup.
Text html_escaped(const Text& text);

}  // namespace shoal::jinja
