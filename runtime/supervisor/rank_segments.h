#pragma once
#include <sys/types.h>
#include <vector>

#include "runtime/transport/facts/stale_segments.h"

namespace shoal {

/// The files of a shared memory directory that a process holds open: what a library in it (NCCL)
/// has made there and may leave when the process is killed. Empty where /proc does not show them.
std::vector<SegmentId> segments_held_by(pid_t pid);

}  // namespace shoal
