#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/control/messages.h"
#include "runtime/device/device.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// This rank's device, r / ranks_per_gpu, selected for the calling thread. Every rank calls it at
/// the same time: what they use is compared through the exchange first, since sums of other code or
/// under another driver may be other sums, and a protocol between two builds may hang. NOT_FOUND,
/// FAILED_PRECONDITION: the module cannot be had, versions differ (rank and both versions named),
/// or the device is not there.
Result<std::shared_ptr<Device>> open_rank_device(const WorkerInit& init, const Exchange& exchange);

/// What ranks must agree on, one line: "module 1-abc, CUDA 13000, driver 13000".
Result<std::string> device_versions(const ShoalCudaModule& module);

/// FAILED_PRECONDITION names the first rank that differs from rank 0, and both versions.
Status check_same_versions(const std::vector<std::string>& of_ranks);

}  // namespace shoal
