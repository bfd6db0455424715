#pragma once
#include <string_view>

#include "models/chat_template/run.h"

namespace shoal::jinja {

/// Whether there is a test of this name, as in `value is defined`.
bool is_test(std::string_view name);

/// Applies a test. Fails if there is none of this name, or if its arguments do not fit.
bool call_test(Run& run, std::string_view name, const Value& value, const Arguments& arguments);

}  // namespace shoal::jinja
