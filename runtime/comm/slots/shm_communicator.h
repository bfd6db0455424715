#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"

namespace shoal {

/// Smallest and default bytes of one slot. A message larger than a slot is sent in pieces. Both
/// default slots of a rank fit into a second-level cache.
inline constexpr size_t kMinShmSlotBytes = 4096;
inline constexpr size_t kShmSlotBytes = 256 * 1024;

/// Bytes of the segment for a group: world_size * (256 + 2 * slot_bytes rounded up to 64). A
/// machine charges whole pages of it. 256 bytes hold a rank's control words, apart from those of
/// other ranks. There are two slots so that a rank can fill one while its peers read the other.
size_t shm_communicator_bytes(int world_size, size_t slot_bytes);

/// Opens a communicator over a fresh, zeroed segment (ShmSegment::create or create_memfd) that
/// every rank of the group maps. The slots get whatever `bytes` leaves for them. The caller keeps
/// fd and may close it afterwards. timeout_ms: for each collective. name: the rung's name, in
/// static storage. INVALID_ARGUMENT: bytes do not suffice for the smallest slots, or fd is not such
/// a segment. RESOURCE_EXHAUSTED: no address space or descriptor is left.
///
/// How it works: in each step, a rank fills one of its two slots, publishes the step's number
/// (release) and waits for the number of every peer (acquire). A rank that sees every number of
/// step n+1 knows that all ranks have read the slots of step n, so it may fill that slot again in
/// step n+2 without a barrier. Each piece of a message takes one step, in which every rank puts in
/// all its planes and sums everything. In groups of three or more ranks, a large message takes two
/// steps: each rank sums its slice of all planes, and then publishes the sum.
Result<std::unique_ptr<Communicator>> open_shm_communicator(World world, int fd, size_t bytes,
                                                            int64_t timeout_ms,
                                                            Interrupted interrupted = {},
                                                            const char* name = "shm");

}  // namespace shoal
