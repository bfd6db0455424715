#pragma once
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// How fast this machine reads memory, in bytes per second: so many threads sum buffers far larger than the caches, the
/// best of several passes. cpus: where not empty, thread i runs on cpus[i]. The yardstick of decoding, which reads
/// every weight once per token. RESOURCE_EXHAUSTED: no memory for the buffers.
Result<double> measure_read_bandwidth(int threads, const std::vector<int>& cpus);

}  // namespace shoal
