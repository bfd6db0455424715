#pragma once
#include "runtime/comm/device/device_collective.h"

namespace shoal {

/// The all_reduce through a memfd that every rank has mapped and pinned for its device: a rank's
/// device writes its slot, the hosts exchange flags (as shm does), the device sums straight from
/// the peers' slots. The host mediates: a call waits for the stream and the peers. fd: of `bytes`
/// bytes, made by the front; stays the caller's. Destroy it when its stream has run dry.
int64_t host_memfd_bytes(int world_size);
Result<std::unique_ptr<DeviceCollective>> open_host_memfd_collective(std::shared_ptr<Device> device,
                                                                     World world, int fd,
                                                                     int64_t bytes,
                                                                     Interrupted interrupted);

}  // namespace shoal
