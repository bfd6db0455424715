#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/control/messages.h"
#include "runtime/device/device.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// Opens this rank's device, RankStart::gpus[rank / ranks_per_gpu], whatever number CUDA gives it
/// by now, and selects it for the calling thread. Every rank calls it at the same time, because the
/// ranks first compare their versions through the exchange: other code or another driver may give
/// other sums, and a protocol between two builds may hang. NOT_FOUND, INVALID_ARGUMENT,
/// FAILED_PRECONDITION: the module cannot be loaded, or versions differ (naming the rank and both
/// versions), or the device is gone. INTERNAL: it cannot be selected. RESOURCE_EXHAUSTED: it has no
/// memory left for a context. If the group has run before, what the device lacks is a shortage,
/// because it may come back.
Result<std::shared_ptr<Device>> open_rank_device(const RankStart& start, const Exchange& exchange);

/// The versions on which all ranks must agree, on one line: "module 1-abc, CUDA 13000, driver
/// 13000". FAILED_PRECONDITION: the driver is missing or too old.
Result<std::string> device_versions(const ShoalCudaModule& module);

/// FAILED_PRECONDITION, naming the first rank that differs from rank 0 and both versions.
Status check_same_versions(const std::vector<std::string>& of_ranks);

}  // namespace shoal
