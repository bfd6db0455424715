#pragma once
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/device/device_collective.h"

namespace shoal {

/// Gives a communicator that moves host memory, such as tcp's, collectives on memory of devices
/// (Communicator::on_devices). Their data is copied through pinned host memory, so each call waits
/// for its stream. Everything else is the communicator's own. A wait also ends with any error of
/// `interrupted`.
Result<std::unique_ptr<Communicator>> with_devices(std::unique_ptr<Communicator> communicator,
                                                   std::shared_ptr<Device> device,
                                                   Interrupted interrupted);

/// The collectives on memory of devices alone.
Result<std::unique_ptr<DeviceCollective>> open_host_collective(
    std::shared_ptr<Communicator> communicator, std::shared_ptr<Device> device,
    Interrupted interrupted);

}  // namespace shoal
