#pragma once
#include <cstdint>
#include <sys/types.h>
#include <vector>

#include "runtime/transport/facts/stale_segments.h"

namespace shoal {

enum class Look {
  kRunning,
  /// For processes that are about to be killed: stops them first (SIGSTOP), because one could make
  /// another file between the look and its death. Waits at most 0.2 s for those that do not stop.
  kStopped
};

/// The files in /dev/shm that processes hold open. A library in them (NCCL) has made them, and may
/// leave them there when a process is killed. Empty if /proc does not show them.
std::vector<SegmentId> segments_held_by(const std::vector<pid_t>& pids, Look look = Look::kRunning);

/// The bytes of /dev/shm in the files that these processes hold open and whose names, which they
/// may have lost, are NCCL's. Each file counts once, in whole pages. 0: none, or /proc does not
/// show them.
int64_t nccl_bytes_held_by(const std::vector<pid_t>& pids);

}  // namespace shoal
