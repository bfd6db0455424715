#include "runtime/comm/device/cuda_ipc_collective.h"
#include "runtime/comm/device/staged_communicator.h"
#include "runtime/transport/rungs/gpu_checks.h"
#include "runtime/transport/rungs/rungs.h"

namespace shoal {
namespace {

/// Kernels write into their peers' memory, so that it needs neither NCCL nor shared memory of the
/// host.
struct CudaIpcRung {
  static constexpr char kName[] = "cuda-ipc";

  /// It takes only device memory.
  static ShmNeed need(const RungContext&) { return {kName, {}, {}}; }

  static Status probe(const RungContext& context) { return check_peers(context.facts.gpu); }

  static Result<TransportSetup> prepare(const RungContext&) {
    TransportSetup setup;
    setup.rung = kName;
    return setup;
  }

  static Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
    SHOAL_ASSIGN_OR_RETURN(
        auto collective,
        open_cuda_ipc_collective(args.device, args.world, args.exchange, args.timeout_ms));
    return make_staged_communicator(std::move(args.device), std::move(collective), args.timeout_ms,
                                    std::move(args.interrupted));
  }
};

}  // namespace

const Rung kCudaIpcRung = rung_of<CudaIpcRung>(DeviceKind::kCuda);

}  // namespace shoal
