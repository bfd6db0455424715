#pragma once
#include <cstddef>

#include "runtime/base/status.h"

namespace shoal {

/// Makes the kernel supply every page of this mapped memory now, ready for writing. The contents
/// stay. `data` is at the start of a page. RESOURCE_EXHAUSTED: a page cannot be had. If the memory
/// cgroup is at its limit, the kernel ends the process instead.
Status populate(std::byte* data, size_t bytes);

}  // namespace shoal
