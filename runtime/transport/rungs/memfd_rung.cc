#include "runtime/comm/slots/shm_communicator.h"
#include "runtime/transport/rungs/rungs.h"
#include "runtime/transport/rungs/slot_pool.h"

namespace shoal {
namespace {

constexpr char kName[] = "memfd";

ShmNeed need(const RungContext& context) {
  return {kName, {}, {slot_pool(context, kShmSlotBytes, 1)}};
}

Status probe(const RungContext& context) {
  return check_memfd(need(context).memory_bytes(), context.facts);
}

Result<TransportSetup> prepare(const RungContext& context) {
  TransportSetup setup;
  setup.rung = kName;
  SHOAL_ASSIGN_OR_RETURN(setup.shm, ShmSegment::create_memfd(
                                        shm_communicator_bytes(context.world_size, kShmSlotBytes)));
  return setup;
}

Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
  return open_slot_pool(std::move(args), kName);
}

}  // namespace

/// The pool of shm in a memfd. It is as fast, and the size of /dev/shm does not limit it.
const Rung kMemfdRung{kName, need, probe, prepare, open};

}  // namespace shoal
