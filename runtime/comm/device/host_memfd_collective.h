#pragma once
#include "runtime/comm/device/device_collective.h"

namespace shoal {

/// Bytes of the memfd for a group of this size.
int64_t host_memfd_bytes(int world_size);

/// Opens the all_reduce through a memfd that every rank has mapped and pinned for its device: a
/// rank's device writes its slot, the hosts exchange flags as in shm, and the device sums straight
/// from the peers' slots. The host takes part in the transfer, so a call waits for the stream and
/// the peers. fd: a memfd of host_memfd_bytes, made by the front; the caller keeps it. bytes: its
/// size. Destroy the collective only when its stream is idle. INVALID_ARGUMENT: `bytes` or the
/// group size is wrong.
Result<std::unique_ptr<DeviceCollective>> open_host_memfd_collective(std::shared_ptr<Device> device,
                                                                     World world, int fd,
                                                                     int64_t bytes,
                                                                     Interrupted interrupted);

}  // namespace shoal
