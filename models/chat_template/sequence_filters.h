#pragma once
#include <string_view>

#include "models/chat_template/run.h"

namespace shoal::jinja {

// The filters that work on sequences: join, map, select, sort and so on.

bool is_sequence_filter(std::string_view name);

/// Precondition: is_sequence_filter.
Value call_sequence_filter(Run& run, std::string_view name, const Value& value,
                           const Arguments& arguments);

}  // namespace shoal::jinja
