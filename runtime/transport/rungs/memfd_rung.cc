#include "runtime/base/page_size.h"
#include "runtime/comm/slots/shm_communicator.h"
#include "runtime/transport/rungs/rungs.h"
#include "runtime/transport/rungs/slot_pool.h"

namespace shoal {
namespace {

/// The pool of shm in a memfd. It is as fast, and the size of /dev/shm does not limit it.
struct MemfdRung {
  static constexpr char kName[] = "memfd";

  static ShmNeed need(const RungContext& context) {
    return {kName, {}, {slot_pool(context, kShmSlotBytes, 1)}};
  }

  static Status probe(const RungContext& context) {
    return check_memfd(need(context).memory_bytes(), context.facts);
  }

  static Result<TransportSetup> prepare(const RungContext& context) {
    TransportSetup setup;
    setup.rung = kName;
    SHOAL_ASSIGN_OR_RETURN(setup.shm, ShmSegment::create_memfd(whole_pages(shm_communicator_bytes(
                                          context.world_size, kShmSlotBytes))));
    return setup;
  }

  static Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
    return open_slot_pool(std::move(args), kName);
  }
};

}  // namespace

const Rung kMemfdRung = rung_of<MemfdRung>(DeviceKind::kCpu, {1.0, 1.0});

}  // namespace shoal
