#pragma once
#include "runtime/comm/device/device_collective.h"

namespace shoal::gpu {

/// The rung of last resort as a collective of devices: their memory goes through pinned memory of
/// the host and over loopback connections. A call waits for the stream. communicator: tcp's.
Result<std::unique_ptr<DeviceCollective>> open_tcp_collective(
    std::shared_ptr<Device> device, std::unique_ptr<Communicator> communicator);

}  // namespace shoal::gpu
