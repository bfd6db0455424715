#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/json.h"

namespace shoal {

/// JSON whose objects keep the order of their members, for documents that are written out again.
using OrderedJson = nlohmann::ordered_json;

/// Each member is compared with those before it, so that an object with very many takes long.
inline constexpr JsonLimits kOrderedJsonLimits{
    .max_depth = 64, .max_values = 20'000'000, .max_members = 1000};

/// parse_json() for a document whose order matters, with the same limits and errors. An integer
/// that does not fit into 64 bits with a sign is refused instead of losing digits.
Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what,
                                       const JsonLimits& limits = kOrderedJsonLimits);

}  // namespace shoal
