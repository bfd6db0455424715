#include "runtime/comm/shm_communicator.h"
#include "runtime/transport/rungs.h"

namespace shoal {
namespace {

constexpr char kName[] = "shm";

ShmNeed need(const RungContext& context) {
  return {kName, {slot_pool(context.world_size, kShmSlotBytes, 1)}, {}};
}

/// What is free, and whether a file can be made at all, is check_budget's.
Status probe(const RungContext& context) {
  return check_file_size(need(2).dev_shm_bytes(), context.facts);
}

Result<TransportSetup> prepare(const RungContext& context) {
  TransportSetup setup;
  setup.rung = kName;
  SHOAL_ASSIGN_OR_RETURN(setup.shm, ShmSegment::create(shm_communicator_bytes(context.world_size, kShmSlotBytes),
                                                       context.facts.dev_shm.path));
  return setup;
}

Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
  return open_shm_communicator(args.world, args.shm.get(), static_cast<size_t>(args.shm_bytes), args.timeout_ms,
                               std::move(args.interrupted), kName);
}

}  // namespace

/// A pool of slots in an unnamed file in /dev/shm.
const Rung kShmRung{kName, need, probe, prepare, open};

}  // namespace shoal
