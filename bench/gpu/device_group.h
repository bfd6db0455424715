#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/rank_processes.h"
#include "runtime/comm/device/device_collective.h"
#include "runtime/comm/tcp/tcp_mesh.h"
#include "runtime/memory/shm_segment.h"

namespace shoal::gpu {

/// The ways between devices that are tried here. nccl gathers and sums in our order, nccl-sum adds
/// in NCCL's; both only where a library is given.
inline constexpr const char* kRungs[] = {"cuda-ipc", "host-memfd", "tcp", "nccl", "nccl-sum"};

/// One group: where its ranks find the module and each other, made before they are.
struct GroupSetup {
  std::string rung;
  std::string module;        ///< path of libshoal_cuda.so
  std::string nccl_library;  ///< for nccl: a path, or "libnccl.so.2"
  int ranks_per_gpu = 1;     ///< rank r is on device r / ranks_per_gpu
  int64_t timeout_ms = 20'000;
  bool any_room = false;   ///< tries NCCL in a /dev/shm, too, that has not the room
  ShmSegment segment;      ///< of host-memfd
  TcpListeners listeners;  ///< of tcp
};
Status prepare(GroupSetup& setup, int world_size);

/// Why the rung cannot be tried in this build, with this setup, or in what /dev/shm has free;
/// empty: it can.
std::string why_not(const GroupSetup& setup, int world_size);

/// A rank's end, in its own process. NCCL's ranks on one device get host ids of their own, so that
/// it takes them for ranks of different machines and uses sockets.
struct RankDevice {
  std::shared_ptr<Device> device;
  std::unique_ptr<DeviceCollective> collective;
};
Result<RankDevice> open_rank(GroupSetup& setup, const RankPlace& place);

/// The same with host memory on either side.
Result<std::unique_ptr<Communicator>> open_staged(GroupSetup& setup, const RankPlace& place);

}  // namespace shoal::gpu
