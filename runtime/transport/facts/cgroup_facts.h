#pragma once
#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

CgroupFacts cgroup_facts(const SystemPaths& paths);

/// The limit of processes and threads. Version 1 has a hierarchy of its own for it.
PidsFacts pids_facts(const SystemPaths& paths);

/// Counts the whole page cache as reclaimable, for a restart, and for one rank alone. Where the
/// model was loaded before, its pages are in the cache, and reading them a second time has made
/// them active. The kernel drops active pages too before it kills a process, and the same model
/// needs no more room than it had.
void count_page_cache_in_full(const SystemPaths& paths, CgroupFacts* facts);

}  // namespace shoal
