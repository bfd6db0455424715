#pragma once
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/device/device_collective.h"
#include "runtime/device/device.h"

namespace shoal {

/// Makes a Communicator for host memory out of a DeviceCollective, which it offers as on_devices().
/// The self-test uses it, so that it proves the sums that a model will use, and so do the few bytes
/// that a step on devices gathers on the host. Data is staged through pinned memory. Each
/// collective fails with DEADLINE_EXCEEDED timeout_ms after its start. A wait also ends with any
/// error of check() or `interrupted`. host: a communicator of the same
/// group that moves host memory, or nullptr. If there is one, gathers and barriers go over it, and
/// nothing of them is staged.
Result<std::unique_ptr<Communicator>> make_staged_communicator(
    std::shared_ptr<Device> device, std::unique_ptr<DeviceCollective> collective,
    int64_t timeout_ms, Interrupted interrupted, std::shared_ptr<Communicator> host = nullptr);

}  // namespace shoal
