#pragma once
#include <cstdint>
#include <memory>

#include "runtime/base/world.h"
#include "runtime/comm/device/device_collective.h"
#include "runtime/comm/exchange.h"

namespace shoal {

/// Opens the all_reduce over peer memory (CUDA IPC): one kernel writes this rank's planes into
/// every peer's area and sums the planes that have arrived in its own. The ranks exchange their
/// areas as IPC handles. A kernel waits for a peer for 7/8 of timeout_ms, but at least 2 s, and
/// never without end. The first kernel that gives up writes the missing rank into mapped host
/// memory, and check() reports it. Takes 10 MiB of the device until the process ends, and maps the
/// same amount of each peer. Destroying the collective frees none of it, so it is allowed while
/// kernels still run.
Result<std::unique_ptr<DeviceCollective>> open_cuda_ipc_collective(std::shared_ptr<Device> device,
                                                                   World world,
                                                                   const Exchange& exchange,
                                                                   int64_t timeout_ms);

}  // namespace shoal
