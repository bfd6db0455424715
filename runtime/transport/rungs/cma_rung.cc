#include "runtime/base/counted.h"
#include "runtime/base/page_size.h"
#include "runtime/base/quantity.h"
#include "runtime/comm/slots/cma_communicator.h"
#include "runtime/transport/rungs/rungs.h"
#include "runtime/transport/rungs/slot_pool.h"

namespace shoal {
namespace {

/// Ranks read each other's private memory. There is no pool of shared memory, only one page of it
/// if it can be had.
struct CmaRung {
  static constexpr char kName[] = "cma";

  static ShmNeed need(const RungContext& context) {
    const int64_t ranks = context.world_size;
    const int64_t rank_bytes =
        in_pages(cma_rank_bytes(context.world_size, kCmaSlotBytes), context.facts);
    return {kName,
            {},
            {{cat("private memory of ", counted(ranks, "rank"), ": 2 own slots and ",
                  counted(ranks - 1, "mirror"), " of ", bytes_text(kCmaSlotBytes),
                  ", and a page of control words, each"),
              ranks * rank_bytes, 0},
             {cat("shared control words of 256 B for each of ", counted(ranks, "rank")),
              in_pages(cma_page_bytes(context.world_size), context.facts), 1}}};
  }

  static Status probe(const RungContext& context) {
    if (!context.facts.cma.tried || context.facts.cma.error == 0) return {};
    constexpr const char* kWhat = "a sibling's memory may not be read (process_vm_readv)";
    if (!context.facts.cma.dumpable) {
      return Status::error(Code::kPermissionDenied,
                           cat(kWhat,
                               ": the kernel guards this program's memory, as it does if its "
                               "user may not read the program's file"),
                           context.facts.cma.error);
    }
    const std::string scope = context.facts.cma.yama_scope < 0
                                  ? "there is no yama"
                                  : cat("yama_scope is ", context.facts.cma.yama_scope);
    return Status::error(Code::kPermissionDenied,
                         cat(kWhat, ": ", scope, ", seccomp mode is ", context.facts.cma.seccomp),
                         context.facts.cma.error);
  }

  /// Takes the shared page wherever one can be had. Without it the rung works too, only slower, so
  /// that its absence is not an error.
  static Result<TransportSetup> prepare(const RungContext& context) {
    TransportSetup setup;
    setup.rung = kName;
    const size_t bytes = whole_pages(cma_page_bytes(context.world_size));
    Result<ShmSegment> page = ShmSegment::create_memfd(bytes);
    for (const std::string& directory : {context.facts.dev_shm.path, std::string("/tmp"),
                                         std::string("/var/tmp"), std::string(".")}) {
      if (page.ok()) break;
      page = ShmSegment::create(bytes, directory);
    }
    if (page.ok()) setup.shm = std::move(page).value();
    return setup;
  }

  static Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
    if (!args.exchange)
      return Status::error(Code::kInvalidArgument, "cma: no exchange to tell of addresses through");
    return open_cma_communicator(args.world, args.shm.get(), static_cast<size_t>(args.shm_bytes),
                                 kCmaSlotBytes, args.timeout_ms, args.exchange,
                                 std::move(args.interrupted));
  }
};

}  // namespace

const Rung kCmaRung = rung_of<CmaRung>(DeviceKind::kCpu, {2.7, 1.9});

}  // namespace shoal
