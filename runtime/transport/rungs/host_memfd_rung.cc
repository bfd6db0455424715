#include "runtime/base/counted.h"
#include "runtime/comm/device/host_memfd_collective.h"
#include "runtime/comm/device/staged_communicator.h"
#include "runtime/memory/shm_segment.h"
#include "runtime/transport/rungs/gpu_checks.h"
#include "runtime/transport/rungs/rungs.h"
#include "runtime/transport/rungs/slot_pool.h"

namespace shoal {
namespace {

/// A pool in host memory that every device reads and writes. It needs neither peer access nor NCCL,
/// and the size of /dev/shm does not limit it.
struct HostMemfdRung {
  static constexpr char kName[] = "host-memfd";

  static ShmNeed need(const RungContext& context) {
    return {
        kName,
        {},
        {{cat("a pinned pool for ", counted(context.world_size, "rank")),
          in_pages(static_cast<size_t>(host_memfd_bytes(context.world_size)), context.facts), 1}}};
  }

  static Status probe(const RungContext& context) {
    SHOAL_RETURN_IF_ERROR(check_devices(context.facts.gpu));
    return check_memfd(need(context).memory_bytes(), context.facts);
  }

  static Result<TransportSetup> prepare(const RungContext& context) {
    TransportSetup setup;
    setup.rung = kName;
    SHOAL_ASSIGN_OR_RETURN(
        setup.shm,
        ShmSegment::create_memfd(static_cast<size_t>(host_memfd_bytes(context.world_size))));
    return setup;
  }

  static Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
    SHOAL_ASSIGN_OR_RETURN(auto collective,
                           open_host_memfd_collective(args.device, args.world, args.shm.get(),
                                                      args.shm_bytes, args.interrupted));
    return make_staged_communicator(std::move(args.device), std::move(collective), args.timeout_ms,
                                    std::move(args.interrupted));
  }
};

}  // namespace

const Rung kHostMemfdRung = rung_of<HostMemfdRung>(DeviceKind::kCuda);

}  // namespace shoal
