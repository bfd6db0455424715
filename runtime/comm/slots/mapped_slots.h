#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/base/world.h"
#include "runtime/comm/slot_flags.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {

/// Names a slot: the one that `rank` fills, or has filled, in a step (counted from 0).
struct SlotOf {
  int rank;
  uint32_t step;
};

/// Rows of equal length in a slot. `pitch` is the number of bytes from the start of one row to the
/// start of the next.
struct SlotRows {
  size_t offset;
  size_t bytes;
  size_t pitch;
  size_t rows;
};

/// Slots in a segment that every rank maps, after the ranks' control words. A peer's slot is read
/// in place.
class MappedSlots {
 public:
  static constexpr bool kDirect = true;

  MappedSlots(World world, ShmSegment segment, size_t slot_bytes)
      : rank_(world.rank),
        segment_(std::move(segment)),
        first_(segment_.data() + static_cast<size_t>(world.size) * sizeof(RankControl)),
        slot_bytes_(slot_bytes) {}

  std::byte* own(uint32_t step) const { return slot({rank_, step}); }
  /// Returns the memory of that slot.
  const std::byte* view(SlotOf of) const { return slot(of); }
  /// Returns 0, or an errno if the peer cannot be read. Here it is always 0.
  int copy(SlotOf of, std::byte* to, size_t bytes) const {
    std::memcpy(to, slot(of), bytes);
    return 0;
  }

 private:
  std::byte* slot(SlotOf of) const {
    return first_ + (static_cast<size_t>(of.rank) * 2 + of.step % 2) * slot_bytes_;
  }

  int rank_;
  ShmSegment segment_;
  std::byte* first_;
  size_t slot_bytes_;
};

}  // namespace shoal
