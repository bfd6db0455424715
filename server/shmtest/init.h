#pragma once
#include "server/shmtest/memory_cgroup.h"
#include "server/shmtest/sandbox.h"

namespace shoal::shmtest {

/// Pid 1 of the sandbox: mounts /proc, starts the command, reaps, watches /dev/shm and the clock,
/// reports, and ends; the kernel then kills what is left.
[[noreturn]] void run_init(const SandboxArgs& args, const MemoryCgroup& cgroup);

}  // namespace shoal::shmtest
