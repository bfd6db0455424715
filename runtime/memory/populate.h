#pragma once
#include <cstddef>

#include "runtime/base/status.h"

namespace shoal {

/// Brings every page of mapped memory in for writing, now; its contents stay. RESOURCE_EXHAUSTED:
/// one cannot be had. Where memory is short in the cgroup the kernel ends the process instead.
/// data: at the start of a page.
Status populate(std::byte* data, size_t bytes);

}  // namespace shoal
