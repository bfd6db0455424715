#include "bench/gpu/device_group.h"

#include <cstdlib>
#include <dlfcn.h>
#include <sys/statvfs.h>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/comm/device/cuda_ipc_collective.h"
#include "runtime/comm/device/host_collective.h"
#include "runtime/comm/device/host_memfd_collective.h"
#include "runtime/comm/device/staged_communicator.h"
#include "runtime/comm/tcp/tcp_communicator.h"
#include "runtime/device/module_loader.h"

namespace shoal::gpu {
namespace {

constexpr uint64_t kGroupKey = 0x5ca1ab1e;

Result<std::unique_ptr<DeviceCollective>> open_tcp(GroupSetup& setup, const RankPlace& place,
                                                   std::shared_ptr<Device> device) {
  Fd listener = std::move(setup.listeners.listeners[static_cast<size_t>(place.world.rank)]);
  SHOAL_ASSIGN_OR_RETURN(auto communicator,
                         open_tcp_communicator(place.world, std::move(listener),
                                               setup.listeners.ports, setup.timeout_ms, kGroupKey));
  return open_host_collective(std::move(communicator), std::move(device), {});
}

bool is_nccl(const GroupSetup& setup) {
  return setup.rung == "nccl" || setup.rung == "nccl-sum";
}

#ifdef SHOAL_GPU_NCCL
void set_nccl_environment(const GroupSetup& setup, World world) {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_IB_DISABLE", "1", 0);
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  ::setenv("NCCL_MIN_CTAS", "1", 0);  // one channel, the bound that the rungs set too
  ::setenv("NCCL_MAX_CTAS", "1", 0);
  if (setup.ranks_per_gpu > 1) ::setenv("NCCL_HOSTID", cat("shoal-rank-", world.rank).c_str(), 1);
}

/// The most of /dev/shm that NCCL up to 2.32 takes with one channel. If the ranks' host ids differ,
/// this is the proxy-ops pool of each rank. Otherwise each pair of neighbours in the ring has the
/// segments of a connection. If NCCL may choose the order of the sum, the neighbours in its tree
/// have them too. NCCL takes nothing if the GPUs reach each other directly, but that is not known
/// here.
int64_t most_dev_shm_bytes(const GroupSetup& setup, int world_size) {
  constexpr int64_t kPool = 68423680, kConnection = 9650176;
  if (world_size < 2) return 0;
  if (setup.ranks_per_gpu > 1) return world_size * kPool;
  const int ring_and_tree = world_size == 2 ? 2 : 3 * world_size - 2;
  return (setup.rung == "nccl" ? world_size : ring_and_tree) * kConnection;
}

std::string no_room(const GroupSetup& setup, int world_size) {
  if (setup.any_room) return "";
  struct statvfs file_system {};
  const bool known = ::statvfs("/dev/shm", &file_system) == 0;
  const auto free = known ? static_cast<int64_t>(file_system.f_bavail * file_system.f_frsize) : 0;
  const int64_t most = most_dev_shm_bytes(setup, world_size);
  return free >= most ? ""
                      : cat("/dev/shm has ", free, " bytes free, ", world_size,
                            " ranks of NCCL may take ", most);
}
#endif

}  // namespace

Status prepare(GroupSetup& setup, int world_size) {
  if (setup.rung == "host-memfd") {
    SHOAL_ASSIGN_OR_RETURN(
        setup.segment, ShmSegment::create_memfd(static_cast<size_t>(host_memfd_bytes(world_size))));
  } else if (setup.rung == "tcp") {
    SHOAL_ASSIGN_OR_RETURN(setup.listeners, make_tcp_listeners(world_size));
  }
  return {};
}

std::string why_not(const GroupSetup& setup, int world_size) {
  if (!is_nccl(setup)) return "";
#ifdef SHOAL_GPU_NCCL
  if (setup.nccl_library.empty()) return "no NCCL library is given (--nccl-library)";
  if (std::string reason = no_room(setup, world_size); !reason.empty()) return reason;
  return run_apart(60, [&]() -> std::string {
    return ::dlopen(setup.nccl_library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr ? ::dlerror()
                                                                                  : "";
  });
#else
  return "this build has no NCCL collective";
#endif
}

Result<RankDevice> open_rank(GroupSetup& setup, const RankPlace& place) {
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* module, load_cuda_module(setup.module));
  RankDevice made;
  SHOAL_ASSIGN_OR_RETURN(made.device,
                         Device::open(*module, place.world.rank / setup.ranks_per_gpu));
  if (setup.rung == "cuda-ipc") {
    SHOAL_ASSIGN_OR_RETURN(
        made.collective,
        open_cuda_ipc_collective(made.device, place.world, place.exchange, setup.timeout_ms));
  } else if (setup.rung == "host-memfd") {
    SHOAL_ASSIGN_OR_RETURN(made.collective,
                           open_host_memfd_collective(made.device, place.world, setup.segment.fd(),
                                                      host_memfd_bytes(place.world.size), {}));
  } else if (setup.rung == "tcp") {
    SHOAL_ASSIGN_OR_RETURN(made.collective, open_tcp(setup, place, made.device));
#ifdef SHOAL_GPU_NCCL
  } else if (is_nccl(setup)) {
    set_nccl_environment(setup, place.world);
    NcclOptions options;
    options.library = setup.nccl_library;
    options.reproducible = setup.rung == "nccl";
    options.timeout_ms = setup.timeout_ms;
    SHOAL_ASSIGN_OR_RETURN(made.collective, open_nccl_collective(made.device, place.world, options,
                                                                 place.exchange, {}));
#endif
  } else {
    return Status::error(Code::kInvalidArgument, cat("no rung ", setup.rung));
  }
  return made;
}

Result<std::unique_ptr<Communicator>> open_staged(GroupSetup& setup, const RankPlace& place) {
  SHOAL_ASSIGN_OR_RETURN(RankDevice rank, open_rank(setup, place));
  return make_staged_communicator(rank.device, std::move(rank.collective), setup.timeout_ms, {});
}

}  // namespace shoal::gpu
