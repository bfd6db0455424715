#pragma once
#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/transport/needs/budget.h"

namespace shoal {

/// So much must lie between a need and the memory cgroup's limit for the reservation to be made
/// without a trial.
inline constexpr int64_t kSafeDistanceBytes = int64_t{64} << 20;

/// Is the limit so near that a page too many may be SIGKILL? Arithmetic has already allowed the
/// need.
bool near_memory_limit(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options);

/// Takes what the rung needs in a disposable process that the kernel kills first (oom_score_adj
/// 1000), and gives it back: its death is the answer, and nobody else's. RESOURCE_EXHAUSTED: it was
/// killed, or could not reserve (its own words); DEADLINE_EXCEEDED: no answer within 10 s. A
/// posix_spawn of this program, which must dispatch the word "reserve-trial" to
/// reserve_trial_main().
Status try_in_disposable_process(const ShmNeed& need);

/// The disposable process: bytes in /dev/shm and bytes of a memfd. Its exit code.
int reserve_trial_main(const char* dev_shm_bytes, const char* memfd_bytes);

}  // namespace shoal
