#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/comm/device/device_collective.h"
#include "runtime/comm/exchange.h"

namespace shoal {

/// What an NCCL group needs beyond its environment. The rung has set that before, because NCCL
/// reads it once per process.
struct NcclOptions {
  std::string name = "nccl";  ///< the rung's
  std::string library;        ///< for dlopen: a path, or "libnccl.so.2"
  /// True: all-gather and our own tree sum. False: ncclAllReduce, which sums in NCCL's order.
  bool reproducible = true;
  int64_t timeout_ms = 0;  ///< for the init and the first collectives together
};

/// Opens one rank's end of an NCCL communicator (nccl_opening.h). Before that, the ranks compare
/// the versions and paths of their libraries: FAILED_PRECONDITION names a rank that differs.
/// DEADLINE_EXCEEDED: a peer never came. Errors carry NCCL's own last error message. After an error
/// the process must be ended, because a communicator that has failed is never aborted or destroyed.
/// Later calls of NCCL have no deadline: the front ends a rank in which one does not return.
Result<std::unique_ptr<DeviceCollective>> open_nccl_collective(std::shared_ptr<Device> device,
                                                               World world,
                                                               const NcclOptions& options,
                                                               const Exchange& exchange,
                                                               const Waiting& waits);

}  // namespace shoal
