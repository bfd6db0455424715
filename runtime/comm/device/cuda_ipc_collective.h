#pragma once
#include "runtime/comm/device/nccl_collective.h"

namespace shoal {

/// The all_reduce over peer memory (CUDA IPC): one kernel writes every rank's planes into every
/// peer's area and sums what came. Areas are exchanged as IPC handles. A kernel waits for a peer 2
/// s at least and never without end; the first that gives up says so in mapped host memory, and
/// check() tells which rank did not come. A kernel waits for 7/8 of timeout_ms, or 2 s if that is
/// more. Takes 10 MiB of the device for the rest of the process, and maps as much of each peer: to
/// destroy the collective gives nothing back, so it may be done whatever still runs.
Result<std::unique_ptr<DeviceCollective>> open_cuda_ipc_collective(std::shared_ptr<Device> device,
                                                                   World world,
                                                                   const ExchangeBytes& exchange,
                                                                   int64_t timeout_ms);

}  // namespace shoal
