#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/device/device_collective.h"

namespace shoal {

/// What a group of NCCL needs beyond its environment, which NCCL caches for the process and the
/// rung has set before.
struct NcclOptions {
  std::string name = "nccl";  ///< the rung's
  std::string library;        ///< for dlopen: a path, or "libnccl.so.2"
  bool reproducible =
      true;  ///< all-gather and our own tree sum; false: ncclAllReduce, in NCCL's order
  int64_t timeout_ms = 0;  ///< of the init and of the warm-up each; a collective brings its own end
};

/// Every rank brings a few bytes and gets those of all, in rank order (rung.h).
using ExchangeBytes = std::function<Result<std::vector<std::string>>(std::string mine)>;

/// One rank's end of an NCCL communicator, made without blocking and polled to success, and warmed
/// up: every algorithm regime that will be used has run once, because NCCL takes its memory at
/// first use. Versions, and the library's, are compared between the ranks first:
/// FAILED_PRECONDITION names the rank that differs. Errors carry NCCL's own last words; after one
/// the process must be ended: an NCCL that failed is never aborted politely. DEADLINE_EXCEEDED: a
/// peer never came.
Result<std::unique_ptr<DeviceCollective>> open_nccl_collective(std::shared_ptr<Device> device,
                                                               World world,
                                                               const NcclOptions& options,
                                                               const ExchangeBytes& exchange,
                                                               const Interrupted& interrupted);

}  // namespace shoal
