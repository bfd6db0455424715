#pragma once
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

std::string to_json(const HostFacts& facts);
/// INVALID_ARGUMENT names the first field that is wrong. Absent fields keep their defaults, unknown
/// ones are ignored.
Result<HostFacts> parse_host_facts(std::string_view text);

}  // namespace shoal
