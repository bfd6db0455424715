#include "runtime/comm/slots/shm_communicator.h"

#include "runtime/base/counted.h"
#include "runtime/comm/slots/slot_communicator.h"

namespace shoal {
namespace {

constexpr size_t kSlotAlignment = 64;

}  // namespace

size_t shm_communicator_bytes(int world_size, size_t slot_bytes) {
  const size_t slot = (slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  return static_cast<size_t>(world_size) * (sizeof(RankControl) + 2 * slot);
}

Result<std::unique_ptr<Communicator>> open_shm_communicator(World world, int fd, size_t bytes,
                                                            int64_t timeout_ms,
                                                            Interrupted interrupted,
                                                            const char* name) {
  if (world.size < 1 || world.rank < 0 || world.rank >= world.size) {
    return Status::error(Code::kInvalidArgument,
                         cat("shm communicator: rank ", world.rank, " of ", world.size));
  }
  const size_t needed = shm_communicator_bytes(world.size, kMinShmSlotBytes);
  if (bytes < needed) {
    return Status::error(Code::kInvalidArgument,
                         cat("shm communicator of ", counted(world.size, "rank"), ": ", bytes,
                             " bytes are given, at least ", needed, " are needed"));
  }
  SHOAL_ASSIGN_OR_RETURN(ShmSegment segment, ShmSegment::open(fd, bytes));
  const size_t share = bytes / static_cast<size_t>(world.size) - sizeof(RankControl);
  const size_t slot_bytes = share / 2 / kSlotAlignment * kSlotAlignment;
  const SharedFlags flags(world, segment.data());
  return std::unique_ptr<Communicator>(std::make_unique<SlotCommunicator<SharedFlags, MappedSlots>>(
      SlotSettings{name, world, slot_bytes, timeout_ms, std::move(interrupted)},
      MappedSlots(world, std::move(segment), slot_bytes), flags));
}

}  // namespace shoal
