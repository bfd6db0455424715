#pragma once
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/slots/mapped_slots.h"
#include "runtime/comm/slots/planted_fault.h"
#include "runtime/comm/slots/slot_steps.h"
#include "runtime/comm/tree_sum.h"

namespace shoal {

/// The protocol of shm_communicator.h over any control words (Flags) and slots (Slots). It is a
/// template instead of an interface, because an all_reduce of 8 KiB takes about a microsecond, and
/// calls through pointers would be a visible part of it. If Slots::kDirect is false, a peer's slot
/// is fetched before it is used. slot_steps.h decides how ranks wait.
template <class Flags, class Slots>
class SlotCommunicator final : public Communicator {
 public:
  SlotCommunicator(SlotSettings settings, Slots slots, Flags flags)
      : world_(settings.world),
        slot_bytes_(settings.slot_bytes),
        steps_(std::move(settings), std::move(slots), std::move(flags)) {}

  const char* name() const override { return steps_.settings().name; }
  World world() const override { return world_; }

  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override;
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override;
  Status barrier() override;
  WaitState wait_state() const override { return steps_.wait_state(); }
  std::optional<Waited> waited() const override { return steps_.waited(); }

 private:
  // From this size on, a group of three or more ranks sums in slices (two steps, each byte is read
  // twice). Below it, every rank sums everything (one step, each byte is read by every rank). Two
  // ranks read the same bytes either way, so they always save a step.
  static constexpr size_t kSlicedFromBytes = 32 * 1024;
  static constexpr size_t kLineFloats = 16;  // in one cache line

  float* own_floats(uint32_t step) { return reinterpret_cast<float*>(steps_.slots().own(step)); }
  /// Each plane in a slot starts at a cache line.
  static size_t stride(size_t width) {
    return (width + kLineFloats - 1) / kLineFloats * kLineFloats;
  }

  Status one_step(const ReducePiece& piece);
  Status two_steps(const ReducePiece& piece);
  Status list_planes(const ReducePiece& piece, uint32_t step, Slice slice);
  Status copy(SlotOf of, std::byte* to, size_t bytes);

#ifdef SHOAL_PLANTED_FAULTS
  bool fires(FaultKind kind, int rank, uint32_t step) {
    const PlantedFault& fault = planted_fault;
    const bool now =
        !fired_ && fault.kind == kind && fault.rank == rank && step >= fault.after_steps;
    fired_ = fired_ || now;
    return now;
  }
  SlotOf source(SlotOf of) {
    if (fires(FaultKind::kStaleRead, of.rank, of.step)) return {of.rank, of.step - 1};
    if (fires(FaultKind::kSwappedSlot, of.rank, of.step))
      return {(of.rank + 1) % world_.size, of.step};
    return of;
  }
  template <class Fill>
  void write(std::byte* to, size_t bytes, const Fill& fill) {
    if (bytes == 0) return;
    const bool drops = fires(FaultKind::kDroppedWrite, world_.rank, steps_.next());
    const std::vector<std::byte> kept(to + bytes / 2, to + bytes);
    fill();
    if (drops) std::copy(kept.begin(), kept.end(), to + bytes / 2);
  }
  bool fired_ = false;
#else
  static SlotOf source(SlotOf of) {
    return of;
  }
  template <class Fill>
  static void write(std::byte*, size_t, const Fill& fill) {
    fill();
  }
#endif
  void write_copy(std::byte* to, const void* from, size_t bytes) {
    write(to, bytes, [&] { std::memcpy(to, from, bytes); });
  }

  const World world_;
  const size_t slot_bytes_;
  SlotSteps<Flags, Slots> steps_;
  std::vector<const float*> planes_;
};

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::all_reduce(const ReducePlan& plan, const float* own,
                                                  float* out, size_t count) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world_));
  SHOAL_RETURN_IF_ERROR(steps_.begin(make_tag(Op::kAllReduce, count)));
  const int most = *std::max_element(plan.contributions.begin(), plan.contributions.end());
  const size_t widest =
      slot_bytes_ / sizeof(float) / static_cast<size_t>(most) / kLineFloats * kLineFloats;
  if (widest == 0) {
    return Status::error(
        Code::kInvalidArgument,
        cat("all_reduce: ", most, " contributions do not fit a slot of ", slot_bytes_, " bytes"));
  }
  const bool sliced = world_.size > 2 && count * sizeof(float) >= kSlicedFromBytes;
  for (size_t at = 0; at < count; at += widest) {
    const ReducePiece piece{plan, own, out, count, at, std::min(widest, count - at)};
    SHOAL_RETURN_IF_ERROR(sliced ? two_steps(piece) : one_step(piece));
  }
  return steps_.end();
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::one_step(const ReducePiece& piece) {
  const uint32_t step = steps_.next();
  float* mine = own_floats(step);
  for (int plane = 0; plane < piece.plan.contributions[world_.rank]; ++plane) {
    write_copy(reinterpret_cast<std::byte*>(mine + plane * stride(piece.width)),
               piece.own + plane * piece.count + piece.begin, piece.width * sizeof(float));
  }
  SHOAL_RETURN_IF_ERROR(steps_.exchange());
  SHOAL_RETURN_IF_ERROR(list_planes(piece, step, {0, piece.width}));
  tree_sum(piece.plan.finish, planes_, piece.out + piece.begin, piece.width);
  return {};
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::two_steps(const ReducePiece& piece) {
  const Slice slice = slice_of(world_.rank, world_.size, piece.width);
  const uint32_t step = steps_.next();
  float* mine = own_floats(step);
  // Nobody reads this rank's own slice from its slot, so it is left out.
  for (int plane = 0; plane < piece.plan.contributions[world_.rank]; ++plane) {
    const float* from = piece.own + plane * piece.count + piece.begin;
    float* to = mine + plane * stride(piece.width);
    write_copy(reinterpret_cast<std::byte*>(to), from, slice.begin * sizeof(float));
    write_copy(reinterpret_cast<std::byte*>(to + slice.end), from + slice.end,
               (piece.width - slice.end) * sizeof(float));
  }
  SHOAL_RETURN_IF_ERROR(steps_.exchange());

  float* sum = own_floats(step + 1);
  SHOAL_RETURN_IF_ERROR(list_planes(piece, step, slice));
  write(reinterpret_cast<std::byte*>(sum), slice.size() * sizeof(float),
        [&] { tree_sum(piece.plan.finish, planes_, sum, slice.size()); });
  SHOAL_RETURN_IF_ERROR(steps_.exchange());
  for (int rank = 0; rank < world_.size; ++rank) {
    const Slice theirs = slice_of(rank, world_.size, piece.width);
    std::byte* to = reinterpret_cast<std::byte*>(piece.out + piece.begin + theirs.begin);
    SHOAL_RETURN_IF_ERROR(copy({rank, step + 1}, to, theirs.size() * sizeof(float)));
  }
  return {};
}

/// Fills planes_ with every rank's planes, each starting at the slice's first element. This rank's
/// own planes are read directly from piece.own.
template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::list_planes(const ReducePiece& piece, uint32_t step,
                                                   Slice slice) {
  planes_.clear();
  const size_t pitch = stride(piece.width);
  for (int rank = 0; rank < world_.size; ++rank) {
    const int contributions = piece.plan.contributions[rank];
    if (contributions == 0) continue;
    const float* first = nullptr;
    size_t next = pitch;
    if (rank == world_.rank) {
      first = piece.own + piece.begin;
      next = piece.count;
    } else {
      const SlotOf of = source({rank, step});
      if constexpr (Slots::kDirect) {
        first = reinterpret_cast<const float*>(steps_.slots().view(of));
      } else {
        const SlotRows rows{slice.begin * sizeof(float), slice.size() * sizeof(float),
                            pitch * sizeof(float), static_cast<size_t>(contributions)};
        if (const int error = steps_.slots().fetch(of, rows, rank); error != 0)
          return steps_.lost(rank, error);
        first = reinterpret_cast<const float*>(steps_.slots().mirror(rank));
      }
    }
    for (int plane = 0; plane < contributions; ++plane)
      planes_.push_back(first + plane * next + slice.begin);
  }
  return {};
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::copy(SlotOf of, std::byte* to, size_t bytes) {
  if (bytes == 0) return {};
  const int error = steps_.slots().copy(source(of), to, bytes);
  return error == 0 ? Status() : steps_.lost(of.rank, error);
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::gather(int root, std::span<const std::byte> mine,
                                              std::span<const size_t> sizes, std::byte* out) {
  SHOAL_RETURN_IF_ERROR(check_gather(root, mine.size(), sizes, world_));
  size_t largest = 0;
  size_t total = 0;
  for (const size_t size : sizes) {
    largest = std::max(largest, size);
    total += size;
  }
  SHOAL_RETURN_IF_ERROR(steps_.begin(make_tag(Op::kGather, total)));
  for (size_t at = 0; at < largest; at += slot_bytes_) {
    const auto width = [&](int rank) {
      return std::min(slot_bytes_, sizes[rank] - std::min(sizes[rank], at));
    };
    const uint32_t step = steps_.next();
    if (world_.rank != root && width(world_.rank) > 0) {
      write_copy(steps_.slots().own(step), mine.data() + at, width(world_.rank));
    }
    SHOAL_RETURN_IF_ERROR(steps_.exchange());
    if (world_.rank != root) continue;
    std::byte* to = out;
    for (int rank = 0; rank < world_.size; to += sizes[rank++]) {
      if (rank != root) {
        SHOAL_RETURN_IF_ERROR(copy({rank, step}, to + at, width(rank)));
      } else if (width(rank) > 0 && to != mine.data()) {
        std::memcpy(to + at, mine.data() + at, width(rank));
      }
    }
  }
  return steps_.end();
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::barrier() {
  SHOAL_RETURN_IF_ERROR(steps_.begin(make_tag(Op::kBarrier, 0)));
  SHOAL_RETURN_IF_ERROR(steps_.exchange());
  return steps_.end();
}

}  // namespace shoal
