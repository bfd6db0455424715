#pragma once
#include <chrono>

#include "runtime/base/status.h"
#include "server/shmtest/memory_cgroup.h"
#include "server/shmtest/sandbox.h"

namespace shoal::shmtest {

/// How often pid 1 looks at /dev/shm while the command runs.
inline constexpr std::chrono::milliseconds kSampleInterval{10};

/// Runs pid 1 of the sandbox: mounts /proc, starts the command, reaps processes, watches /dev/shm
/// and the clock, reports, and ends. The kernel then kills whatever is left in the namespace.
/// With args.in_place there is no namespace: it is the subreaper of what the command starts, and
/// the keeper ends what is left.
[[noreturn]] void run_init(const SandboxArgs& args, const MemoryCgroup& cgroup);

/// Pid 1 of a pid namespace calls this to see its own processes in /proc. Error: PERMISSION_DENIED.
Status mount_own_proc();

}  // namespace shoal::shmtest
