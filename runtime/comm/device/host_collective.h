#pragma once
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/device/device_collective.h"

namespace shoal {

/// Makes collectives on memory of devices out of a communicator that moves host memory, such as
/// tcp's. Their data is copied through pinned host memory, so each call waits for its stream. A
/// wait also ends with any error of `interrupted`.
Result<std::unique_ptr<DeviceCollective>> open_host_collective(
    std::shared_ptr<Communicator> communicator, std::shared_ptr<Device> device,
    Interrupted interrupted);

/// The collectives of a group of one rank, which has nothing to wait for. INVALID_ARGUMENT from a
/// sum: the plan is one of another group, or has more than one contribution.
std::unique_ptr<DeviceCollective> make_single_collective(std::shared_ptr<Device> device);

}  // namespace shoal
