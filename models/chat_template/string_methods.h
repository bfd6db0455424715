#pragma once
#include <string_view>

#include "models/chat_template/run.h"

namespace shoal::jinja {

bool is_string_method(std::string_view name);

/// Calls a method of str. The origin of each character is kept. Precondition: is_string_method.
Value call_string_method(Run& run, std::string_view name, const Value& self,
                         const Arguments& arguments);

}  // namespace shoal::jinja
