#pragma once
#include <string_view>

#include "models/chat_template/run.h"

namespace shoal::jinja {

/// Whether there is a filter of this name, as in `value | trim`.
bool is_filter(std::string_view name);

/// Applies a filter. Fails if there is none of this name, or if its arguments do not fit.
Value call_filter(Run& run, std::string_view name, const Value& value, const Arguments& arguments);

}  // namespace shoal::jinja
