#pragma once
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/slot_flags.h"
#include "runtime/comm/slots/mapped_slots.h"
#include "runtime/comm/slots/planted_fault.h"
#include "runtime/comm/spin.h"
#include "runtime/comm/tree_sum.h"

namespace shoal {

struct SlotSettings {
  const char* name;
  World world;
  size_t slot_bytes;
  int64_t timeout_ms;
  Interrupted interrupted;
};

/// The protocol of shm_communicator.h over any control words (Flags) and slots (Slots). A template,
/// not an interface: an all_reduce of 8 KiB takes about a microsecond, of which calls through
/// pointers would be a visible part. Where Slots::kDirect is false a peer's slot is first fetched,
/// and a rank that leaves waits until its slots have been read.
template <class Flags, class Slots>
class SlotCommunicator final : public Communicator {
 public:
  SlotCommunicator(SlotSettings settings, Slots slots, Flags flags)
      : name_(settings.name),
        world_(settings.world),
        slot_bytes_(settings.slot_bytes),
        timeout_ms_(settings.timeout_ms),
        interrupted_(std::move(settings.interrupted)),
        slots_(std::move(slots)),
        flags_(std::move(flags)) {
    if constexpr (!Slots::kDirect)
      flags_.set_done(1);  // done counts from 1: 0 is a rank that has yet to open
  }

  ~SlotCommunicator() override {
    flags_.close();
    if constexpr (!Slots::kDirect) {
      if (failed_.ok()) linger();
    }
  }

  const char* name() const override { return name_; }
  World world() const override { return world_; }

  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override;
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override;
  Status barrier() override;
  WaitState wait_state() const override {
    return {collectives_, collectives_ == 0 ? "" : tag_text(tag_),
            !failed_.ok() ? waited_for_
            : waiting_    ? missing()
                          : std::vector<int>()};
  }

 private:
  // From here a group of three and more sums slices (two steps, each byte read twice) rather than
  // everything everywhere (one step, each byte read by every rank). Two ranks read the same bytes
  // either way and save the step.
  static constexpr size_t kSlicedFromBytes = 32 * 1024;
  static constexpr size_t kPrefetchBytes = 8 * 1024;
  static constexpr size_t kLineFloats = 16;  // of a cache line
  static constexpr int kPolls = 16;          // between two looks at the clock
  static constexpr int kSliceMs =
      100;  // of a wait: so long goes by between two looks at the rest of the world

  float* own_floats(uint32_t step) const { return reinterpret_cast<float*>(slots_.own(step)); }
  /// Planes in a slot start at cache lines.
  static size_t stride(size_t width) {
    return (width + kLineFloats - 1) / kLineFloats * kLineFloats;
  }

  Status begin(uint64_t tag);
  Status end() {
    if constexpr (!Slots::kDirect) flags_.set_done(step_ + 1);
    return {};
  }
  Status one_step(const ReducePiece& piece);
  Status two_steps(const ReducePiece& piece);
  Status list_planes(const ReducePiece& piece, uint32_t step, Slice slice);
  Status copy(SlotOf of, std::byte* to, size_t bytes);
  Status exchange();
  Status wait_for(int peer);
  Status wait_slowly(int peer);
  Status sleep_for(int peer, Deadline deadline);
  Status fail(Status status);
  Status timed_out();
  Status lost(int peer, int error);
  void linger();
  std::vector<int> missing() const;
  std::string here() const {
    return cat(name_, " collective ", collectives_, " (", tag_text(tag_), ")");
  }

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
    const bool drops = fires(FaultKind::kDroppedWrite, world_.rank, step_);
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

  const char* const name_;
  const World world_;
  const size_t slot_bytes_;
  const int64_t timeout_ms_;
  const Interrupted interrupted_;
  Slots slots_;
  Flags flags_;
  int64_t spin_ns_ = -1;      // known after the first step, when all have shown their CPUs
  uint32_t step_ = 0;         // steps published so far; wraps
  uint64_t collectives_ = 0;  // begun so far, for messages
  uint64_t tag_ = 0;          // of the running collective
  std::optional<Deadline>
      until_;  // of the running collective, from its first sleep on: no clock is read before
  bool waiting_ = false;         // asleep for a peer
  Status failed_;                // the first error; every later call returns it
  std::vector<int> waited_for_;  // when it came
  std::vector<const float*> planes_;
};

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::begin(uint64_t tag) {
  if (!failed_.ok()) return failed_;  // and wait_state tells of the collective that failed
  tag_ = tag;
  ++collectives_;
  until_.reset();
  return {};
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::all_reduce(const ReducePlan& plan, const float* own,
                                                  float* out, size_t count) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world_));
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kAllReduce, count)));
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
  return end();
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::one_step(const ReducePiece& piece) {
  const uint32_t step = step_;
  float* mine = own_floats(step);
  for (int plane = 0; plane < piece.plan.contributions[world_.rank]; ++plane) {
    write_copy(reinterpret_cast<std::byte*>(mine + plane * stride(piece.width)),
               piece.own + plane * piece.count + piece.begin, piece.width * sizeof(float));
  }
  SHOAL_RETURN_IF_ERROR(exchange());
  SHOAL_RETURN_IF_ERROR(list_planes(piece, step, {0, piece.width}));
  tree_sum(piece.plan.finish, planes_, piece.out + piece.begin, piece.width);
  return {};
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::two_steps(const ReducePiece& piece) {
  const Slice slice = slice_of(world_.rank, world_.size, piece.width);
  const uint32_t step = step_;
  float* mine = own_floats(step);
  for (int plane = 0; plane < piece.plan.contributions[world_.rank];
       ++plane) {  // nobody reads my own slice there
    const float* from = piece.own + plane * piece.count + piece.begin;
    float* to = mine + plane * stride(piece.width);
    write_copy(reinterpret_cast<std::byte*>(to), from, slice.begin * sizeof(float));
    write_copy(reinterpret_cast<std::byte*>(to + slice.end), from + slice.end,
               (piece.width - slice.end) * sizeof(float));
  }
  SHOAL_RETURN_IF_ERROR(exchange());

  float* sum = own_floats(step + 1);
  SHOAL_RETURN_IF_ERROR(list_planes(piece, step, slice));
  write(reinterpret_cast<std::byte*>(sum), slice.size() * sizeof(float),
        [&] { tree_sum(piece.plan.finish, planes_, sum, slice.size()); });
  SHOAL_RETURN_IF_ERROR(exchange());
  for (int rank = 0; rank < world_.size; ++rank) {
    const Slice theirs = slice_of(rank, world_.size, piece.width);
    std::byte* to = reinterpret_cast<std::byte*>(piece.out + piece.begin + theirs.begin);
    SHOAL_RETURN_IF_ERROR(copy({rank, step + 1}, to, theirs.size() * sizeof(float)));
  }
  return {};
}

/// Fills planes_: every rank's planes at the slice's first element; this rank's own come from where
/// they are.
template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::list_planes(const ReducePiece& piece, uint32_t step,
                                                   Slice slice) {
  planes_.clear();
  const size_t pitch = stride(piece.width);
  for (int rank = 0; rank < world_.size; ++rank) {
    const int contributions = piece.plan.contributions[rank];
    if (contributions == 0) continue;
    const float* first = piece.own + piece.begin;
    size_t next = piece.count;
    if (rank != world_.rank) {
      const SlotOf of = source({rank, step});
      if constexpr (Slots::kDirect) {
        first = reinterpret_cast<const float*>(slots_.view(of));
      } else {
        const SlotRows rows{slice.begin * sizeof(float), slice.size() * sizeof(float),
                            pitch * sizeof(float), static_cast<size_t>(contributions)};
        if (const int error = slots_.fetch(of, rows, rank); error != 0) return lost(rank, error);
        first = reinterpret_cast<const float*>(slots_.mirror(rank));
      }
      next = pitch;
    }
    for (int plane = 0; plane < contributions; ++plane)
      planes_.push_back(first + plane * next + slice.begin);
  }
  return {};
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::copy(SlotOf of, std::byte* to, size_t bytes) {
  if (bytes == 0) return {};
  const int error = slots_.copy(source(of), to, bytes);
  return error == 0 ? Status() : lost(of.rank, error);
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
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kGather, total)));
  for (size_t at = 0; at < largest; at += slot_bytes_) {
    const auto width = [&](int rank) {
      return std::min(slot_bytes_, sizes[rank] - std::min(sizes[rank], at));
    };
    const uint32_t step = step_;
    if (world_.rank != root && width(world_.rank) > 0) {
      write_copy(slots_.own(step), mine.data() + at, width(world_.rank));
    }
    SHOAL_RETURN_IF_ERROR(exchange());
    if (world_.rank != root) continue;
    std::byte* to = out;
    for (int rank = 0; rank < world_.size; to += sizes[rank++]) {
      if (rank != root) {
        SHOAL_RETURN_IF_ERROR(copy({rank, step}, to + at, width(rank)));
      } else if (width(rank) > 0) {
        std::memcpy(to + at, mine.data() + at, width(rank));
      }
    }
  }
  return end();
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::barrier() {
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kBarrier, 0)));
  SHOAL_RETURN_IF_ERROR(exchange());
  return end();
}

/// One step: publishes this rank's slot and returns when every peer has published its own.
template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::exchange() {
  flags_.publish(++step_, tag_);
  // While the peers' numbers come, get back the next slot's lines, which they hold since they read
  // them: 5-10 % at 8 KiB.
  const std::byte* next = slots_.own(step_);
  for (size_t at = 0; at < kPrefetchBytes && at < slot_bytes_; at += 64)
    prefetch_for_write(next + at);
  for (int distance = 1; distance < world_.size; ++distance) {
    SHOAL_RETURN_IF_ERROR(wait_for((world_.rank + distance) % world_.size));
  }
  if (spin_ns_ < 0) {
    std::vector<CpuMask> masks;
    for (int rank = 0; rank < world_.size; ++rank) masks.push_back(flags_.cpus(rank));
    spin_ns_ = spin_budget_ns(masks);
  }
  return {};
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::wait_for(int peer) {
  if (!reached(flags_.word(peer), step_)) SHOAL_RETURN_IF_ERROR(wait_slowly(peer));
  const uint64_t tag = flags_.tag(peer, step_ - 1);
  if (tag == tag_) return {};
  return fail(
      Status::error(Code::kInternal, cat(name_, " collective ", collectives_, ": this rank is in ",
                                         tag_text(tag_), ", rank ", peer, " in ", tag_text(tag))));
}

/// Polls for the spin budget, then sleeps until the deadline.
template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::wait_slowly(int peer) {
  const auto polled = [&] {
    for (int i = 0; i < kPolls; ++i) {
      if (reached(flags_.word(peer), step_)) return true;
      cpu_relax();
    }
    return false;
  };
  if (polled())
    return {};  // most of the time, and without a look at the clock, which costs as much as a few
                // polls
  const auto poll_until = Clock::now() + std::chrono::nanoseconds(std::max<int64_t>(spin_ns_, 0));
  do {
    if (polled()) return {};
  } while (Clock::now() < poll_until);
  if (!until_) until_ = Deadline::after_ms(timeout_ms_);
  waiting_ = true;
  Status status = sleep_for(peer, *until_);
  waiting_ = false;
  return status;
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::sleep_for(int peer, Deadline deadline) {
  Deadline look = Deadline::after_ms(kSliceMs);
  for (;;) {
    const uint32_t seen = flags_.word(peer);
    if (reached(seen, step_)) return {};
    if (seen & kClosed) return lost(peer, 0);
    if (deadline.passed()) return fail(timed_out());
    if (look.passed()) {
      if (interrupted_) {
        if (Status stop = interrupted_(); !stop.ok()) return fail(std::move(stop));
      }
      if constexpr (!Slots::kDirect) {
        if (const int error = slots_.check(peer); error != 0) return lost(peer, error);
      }
      look = Deadline::after_ms(kSliceMs);
    }
    flags_.sleep(peer, step_, deadline.remaining_ms(look.remaining_ms()));
  }
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::fail(Status status) {
  waited_for_ = missing();
  failed_ = std::move(status);
  if constexpr (!Slots::kDirect) flags_.close();  // who leaves need not wait for this rank to read
  return failed_;
}

/// error: of the attempt to read its memory; 0: the rank itself has said so.
template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::lost(int peer, int error) {
  if (error == EPERM || error == ENOSYS) {
    return fail(Status::error(Code::kPermissionDenied,
                              cat(here(), ": reading rank ", peer, "'s memory"), error));
  }
  return fail(Status::error(Code::kUnavailable, cat(here(), ": rank ", peer, " has closed its end"),
                            error));
}

template <class Flags, class Slots>
Status SlotCommunicator<Flags, Slots>::timed_out() {
  std::string text;
  for (const int rank : missing()) {
    const uint32_t behind = (step_ * kStep - (flags_.word(rank) & ~(kStep - 1))) / kStep;
    text += cat(text.empty() ? "rank " : ", rank ", rank, " (", behind,
                behind == 1 ? " step" : " steps", " behind)");
  }
  return Status::error(Code::kDeadlineExceeded,
                       cat(here(), ", step ", step_, ": waited ", timeout_ms_, " ms for ", text));
}

template <class Flags, class Slots>
std::vector<int> SlotCommunicator<Flags, Slots>::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank != world_.rank && !reached(flags_.word(rank), step_)) ranks.push_back(rank);
  }
  return ranks;
}

/// Until every peer has read what this rank's slots hold, which go with it, or has itself gone.
template <class Flags, class Slots>
void SlotCommunicator<Flags, Slots>::linger() {
  const Deadline deadline = Deadline::after_ms(timeout_ms_);
  Deadline look = Deadline::after_ms(kSliceMs);
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank == world_.rank) continue;
    for (int64_t pause_us = 20; static_cast<int32_t>(flags_.done(rank) - (step_ + 1)) < 0;
         pause_us *= 2) {
      if ((flags_.word(rank) & kClosed) || deadline.passed()) break;
      if (look.passed()) {
        if constexpr (!Slots::kDirect) {
          if (slots_.check(rank) != 0) break;
        }
        if (interrupted_ && !interrupted_().ok()) return;
        look = Deadline::after_ms(kSliceMs);
      }
      pause_us = std::min<int64_t>(pause_us, 1000);
      ::usleep(static_cast<useconds_t>(pause_us));
    }
  }
}

}  // namespace shoal
