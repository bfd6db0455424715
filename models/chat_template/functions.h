#pragma once
#include <optional>
#include <string_view>

#include "models/chat_template/attributes.h"

namespace shoal::jinja {

/// A function that every template sees (range, dict, namespace, raise_exception, strftime_now), or
/// nothing.
std::optional<Value> global_function(std::string_view name);

/// Calls such a function, or a bound method.
Value call_function(Run& run, const FunctionObject& function, const Arguments& arguments);

}  // namespace shoal::jinja
