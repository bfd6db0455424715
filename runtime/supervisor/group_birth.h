#pragma once
#include <vector>

#include "runtime/base/status.h"
#include "runtime/supervisor/rank_process.h"
#include "runtime/supervisor/worker_group.h"

namespace shoal {

/// Starts the processes of a group and sends each its RankStart. *ranks receives them in rank
/// order. The calling thread must live as long as they should (spawn_worker). RESOURCE_EXHAUSTED,
/// with errno: a process or a channel could not be made; *ranks then holds those that were started,
/// and the caller ends them.
Status spawn_ranks(const WorkerGroupOptions& options, const TransportSetup& setup,
                   std::vector<RankProcess>* ranks);

}  // namespace shoal
