#pragma once
#include "runtime/comm/device/device_collective.h"

namespace shoal::gpu {

/// The last rung, tcp, as a collective of devices. Their data is copied through pinned host memory
/// and sent over loopback connections, so each call waits for the stream. communicator must be the
/// one of tcp.
Result<std::unique_ptr<DeviceCollective>> open_tcp_collective(
    std::shared_ptr<Device> device, std::unique_ptr<Communicator> communicator);

}  // namespace shoal::gpu
