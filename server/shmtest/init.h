#pragma once
#include "server/shmtest/memory_cgroup.h"
#include "server/shmtest/sandbox.h"

namespace shoal::shmtest {

/// Runs pid 1 of the sandbox: mounts /proc, starts the command, reaps processes, watches /dev/shm
/// and the clock, reports, and ends. The kernel then kills whatever is left in the namespace.
[[noreturn]] void run_init(const SandboxArgs& args, const MemoryCgroup& cgroup);

}  // namespace shoal::shmtest
