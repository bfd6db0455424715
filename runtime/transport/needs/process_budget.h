#pragma once
#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// What a start takes of the limits that are the same for every transport.
struct ProcessNeed {
  int64_t processes_and_threads = 0;  ///< how many of them a start adds
  int64_t address_space_bytes = 0;    ///< of the process that maps the most
};

/// RESOURCE_EXHAUSTED: the limit of processes of this user or of the container, or of the address
/// space of a process, is certainly too low. The message has the need, the limit and what to do. A
/// limit that is barely enough may still be met later, because others use it too.
Status check_processes(const ProcessNeed& need, const HostFacts& facts);

}  // namespace shoal
