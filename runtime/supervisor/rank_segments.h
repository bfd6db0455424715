#pragma once
#include <sys/types.h>
#include <vector>

#include "runtime/transport/facts/stale_segments.h"

namespace shoal {

/// The files in /dev/shm that a process holds open. A library in it (NCCL) has made them, and may
/// leave them there when the process is killed. Empty if /proc does not show them.
std::vector<SegmentId> segments_held_by(pid_t pid);

}  // namespace shoal
