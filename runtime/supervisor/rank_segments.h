#pragma once
#include <cstdint>
#include <sys/types.h>
#include <vector>

#include "runtime/transport/facts/stale_segments.h"

namespace shoal {

/// The files in /dev/shm that a process holds open. A library in it (NCCL) has made them, and may
/// leave them there when the process is killed. Empty if /proc does not show them.
std::vector<SegmentId> segments_held_by(pid_t pid);

/// The bytes of /dev/shm in the files that these processes hold open and whose names, which they
/// may have lost, are NCCL's. Each file counts once, in whole pages. 0: none, or /proc does not
/// show them.
int64_t nccl_bytes_held_by(const std::vector<pid_t>& pids);

}  // namespace shoal
