#pragma once
#include <cstdint>
#include <string>

#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// All facts about the directory except the result of the probe.
ShmDirFacts shm_dir_facts(const SystemPaths& paths, const std::string& directory);

/// Allocates the bytes in facts->dev_shm for real and releases them, unless the numbers already
/// forbid it. Near a memory limit a disposable child does this, because beyond the limit the kernel
/// answers a page of tmpfs with SIGKILL instead of an errno. All other facts must be gathered
/// before.
void probe_shm_dir(int64_t bytes, HostFacts* facts);

/// errno of making a memfd that can be sealed; 0: it works.
int memfd_error();

}  // namespace shoal
