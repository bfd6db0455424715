#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/base/world.h"
#include "runtime/comm/slot_flags.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {

/// Which slot: that which `rank` fills, or filled, in a step (counted from 0).
struct SlotOf {
  int rank;
  uint32_t step;
};

/// Rows of equal length in a slot, `pitch` bytes from one's start to the next one's.
struct SlotRows {
  size_t offset;
  size_t bytes;
  size_t pitch;
  size_t rows;
};

/// Slots in a segment that every rank maps, behind the ranks' control words: a peer's slot is read
/// where it is.
class MappedSlots {
 public:
  static constexpr bool kDirect = true;

  MappedSlots(World world, ShmSegment segment, size_t slot_bytes)
      : rank_(world.rank),
        segment_(std::move(segment)),
        first_(segment_.data() + static_cast<size_t>(world.size) * sizeof(RankControl)),
        slot_bytes_(slot_bytes) {}

  std::byte* own(uint32_t step) const { return slot({rank_, step}); }
  /// Where `of` is to be read.
  const std::byte* view(SlotOf of) const { return slot(of); }
  /// 0, or the errno that says why a peer cannot be read: never, here.
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
