#pragma once
#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/transport/needs/budget.h"

namespace shoal {

/// If the memory cgroup has room for twice the need plus this many bytes, the memory is reserved
/// without a trial.
inline constexpr int64_t kSafeDistanceBytes = int64_t{64} << 20;

/// True if the cgroup limit is so close that reserving might trigger the OOM killer. The arithmetic
/// must already have allowed the need. False if no process can be disposable, because the kernel
/// kills a whole group at once.
bool near_memory_limit(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options);

/// Takes what the rung needs in a disposable process, which then ends and gives it back. The kernel
/// kills that process first (oom_score_adj 1000), so that its death is the answer and nothing else
/// dies. It is a posix_spawn of this program, which must dispatch the word "reserve-trial" to
/// reserve_trial_main(). RESOURCE_EXHAUSTED: it could not be started, was killed, or could not
/// reserve (with its own message); DEADLINE_EXCEEDED: no answer within 10 s; UNAVAILABLE: how it
/// ended is not known.
Status try_in_disposable_process(const ShmNeed& need);

/// The main function of the disposable process: takes these bytes in /dev/shm and these bytes of
/// other memory. Returns its exit code.
int reserve_trial_main(const char* dev_shm_bytes, const char* memfd_bytes);

}  // namespace shoal
