#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"

namespace shoal {

/// Smallest and usual bytes of one slot. A message larger than a slot goes in pieces; a usual slot
/// stays, with its twin, in a second-level cache.
inline constexpr size_t kMinShmSlotBytes = 4096;
inline constexpr size_t kShmSlotBytes = 256 * 1024;

/// Bytes of the segment for a group: world_size * (256 + 2 * slot_bytes rounded up to 64), rounded
/// up to whole pages of 4096, which is what the file system charges. 256: a rank's control words,
/// apart from the others'. 2: while the peers read one slot, the rank fills the other.
size_t shm_communicator_bytes(int world_size, size_t slot_bytes);

/// A communicator over a fresh, zeroed segment (ShmSegment::create or create_memfd) that every rank
/// of the group maps. Slots take what `bytes` leaves. fd stays the caller's and may be closed
/// afterwards. timeout_ms: of one collective. name: the rung's, of static storage.
/// INVALID_ARGUMENT: bytes do not suffice for the smallest slots, or fd is not such a segment.
/// RESOURCE_EXHAUSTED: no address space or descriptor.
///
/// How: in a step each rank fills one of its two slots, publishes the step's number (release) and
/// waits for every peer's (acquire). Who sees all numbers of step n+1 knows that all have read step
/// n's slots, so a slot may be filled again in step n+2 without a barrier. A message takes one step
/// per piece: all planes in, everybody sums everything. From three ranks on a large one takes two:
/// a rank sums its slice of all planes, then shows the sum.
Result<std::unique_ptr<Communicator>> open_shm_communicator(World world, int fd, size_t bytes,
                                                            int64_t timeout_ms,
                                                            Interrupted interrupted = {},
                                                            const char* name = "shm");

}  // namespace shoal
