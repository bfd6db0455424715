#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/rank_processes.h"
#include "runtime/comm/device/device_collective.h"
#include "runtime/comm/tcp/tcp_mesh.h"
#include "runtime/memory/shm_segment.h"

namespace shoal::gpu {

/// The transports between devices that are tried here. nccl gathers and adds in our order, nccl-sum
/// adds in NCCL's order; both are tried only if a library is given.
inline constexpr const char* kRungs[] = {"cuda-ipc", "host-memfd", "tcp", "nccl", "nccl-sum"};

/// What the ranks of one group need to find the module and each other. It is made before the ranks
/// are started.
struct GroupSetup {
  std::string rung;
  std::string module;        ///< path of libshoal_cuda.so
  std::string nccl_library;  ///< for nccl: a path, or "libnccl.so.2"
  int ranks_per_gpu = 1;     ///< rank r is on device r / ranks_per_gpu
  int64_t timeout_ms = 20'000;
  bool any_room = false;   ///< tries NCCL even if /dev/shm has too little room
  ShmSegment segment;      ///< of host-memfd
  TcpListeners listeners;  ///< of tcp
};
Status prepare(GroupSetup& setup, int world_size);

/// Why the rung cannot be tried: because of this build, this setup or the free space in /dev/shm.
/// Empty if it can be tried.
std::string why_not(const GroupSetup& setup, int world_size);

/// One rank's side of the group, in its own process. If ranks share a device, each gets its own
/// NCCL host id, so that NCCL treats them as ranks of different machines and uses sockets.
struct RankDevice {
  std::shared_ptr<Device> device;
  std::unique_ptr<DeviceCollective> collective;
};
Result<RankDevice> open_rank(GroupSetup& setup, const RankPlace& place);

/// The same, with input and output in host memory.
Result<std::unique_ptr<Communicator>> open_staged(GroupSetup& setup, const RankPlace& place);

}  // namespace shoal::gpu
