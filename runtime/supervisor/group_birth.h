#pragma once
#include <vector>

#include "runtime/base/status.h"
#include "runtime/supervisor/rank_process.h"
#include "runtime/supervisor/worker_group.h"

namespace shoal {

/// Makes channels until there are `count`, if enough descriptors stay free for others afterwards.
/// Otherwise the next group makes them when it starts.
void stock_channels(int count, ChannelStock* stock);

/// Starts the processes of a group and sends each its RankStart. *ranks receives them in rank
/// order. Their channels are taken from *stock, as long as it has some; it may be nullptr. The
/// calling thread must live as long as the processes should (spawn_worker). RESOURCE_EXHAUSTED,
/// with errno: a process or a channel could not be made; *ranks then holds those that were started,
/// and the caller ends them.
Status spawn_ranks(const WorkerGroupOptions& options, const TransportSetup& setup,
                   ChannelStock* stock, std::vector<RankProcess>* ranks);

}  // namespace shoal
