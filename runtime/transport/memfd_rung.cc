#include "runtime/comm/shm_communicator.h"
#include "runtime/transport/rungs.h"

namespace shoal {
namespace {

constexpr char kName[] = "memfd";

ShmNeed need(int world_size) {
  return {kName, {}, {slot_pool(world_size, kShmSlotBytes, 1)}};
}

Status probe(const HostFacts& facts) {
  if (facts.memfd_error != 0) {
    return Status::error(Code::kUnavailable, "no memfd can be made (memfd_create with sealing)", facts.memfd_error);
  }
  return check_file_size(need(2).memory_bytes(), facts);
}

Result<TransportSetup> prepare(int world_size, const HostFacts&) {
  TransportSetup setup;
  setup.rung = kName;
  SHOAL_ASSIGN_OR_RETURN(setup.shm, ShmSegment::create_memfd(shm_communicator_bytes(world_size, kShmSlotBytes)));
  return setup;
}

Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
  return open_shm_communicator(args.world, args.shm.get(), static_cast<size_t>(args.shm_bytes), args.timeout_ms,
                               std::move(args.interrupted), kName);
}

}  // namespace

/// The pool of shm in a memfd: the same speed, and no mount's size bounds it.
const Rung kMemfdRung{kName, need, probe, prepare, open};

}  // namespace shoal
