#include "runtime/comm/shm_communicator.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <linux/futex.h>
#include <optional>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/spin.h"
#include "runtime/comm/tree_sum.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSlotAlignment = 64;
constexpr size_t kLineFloats = 16;  // of a cache line

// From here a group of three and more sums slices (two steps, each byte read twice) rather than everything everywhere
// (one step, each byte read by every rank). Two ranks read the same bytes either way and save the step.
constexpr size_t kSlicedFromBytes = 32 * 1024;

constexpr size_t kPrefetchBytes = 8 * 1024;

// A rank's progress word: the number of its last published step, times four, and two flags.
constexpr uint32_t kSleepers = 1;  ///< set by a peer before it sleeps: the next publication must wake it
constexpr uint32_t kClosed = 2;    ///< the rank has gone; no further step will come
constexpr uint32_t kStep = 4;
bool reached(uint32_t word, uint32_t step) {
  return static_cast<int32_t>((word & ~(kStep - 1)) - step) >= 0;
}

/// A rank's words in the segment. 128: neighbouring lines are fetched in pairs.
struct alignas(128) RankControl {
  uint32_t progress;
  uint32_t unused;
  uint64_t tags[2];  ///< per slot, what the rank believes this step to be; on the progress word's line, so free to read
  alignas(128) CpuMask cpus;
};
static_assert(sizeof(RankControl) == 256);

enum class Op : uint8_t { kAllReduce = 1, kGather = 2, kBarrier = 3 };

/// Op and size in one word; both must agree between the ranks in every step.
constexpr uint64_t make_tag(Op op, uint64_t amount) {
  return uint64_t{static_cast<uint8_t>(op)} << 56 | amount;
}
std::string tag_text(uint64_t tag) {
  const uint64_t amount = tag & ((uint64_t{1} << 56) - 1);
  switch (static_cast<Op>(tag >> 56)) {
    case Op::kAllReduce:
      return cat("all_reduce of ", amount, " floats");
    case Op::kGather:
      return cat("gather of ", amount, " bytes");
    case Op::kBarrier:
      return "barrier";
  }
  return "no collective";
}

// Not the private variants: the word is shared between processes, by the file's inode.
int futex_wait(uint32_t* word, uint32_t expected, int timeout_ms) {
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  return static_cast<int>(::syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0));
}
void futex_wake_all(uint32_t* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(World world, ShmSegment segment, size_t slot_bytes, int64_t timeout_ms)
      : world_(world), segment_(std::move(segment)), slot_bytes_(slot_bytes), timeout_ms_(timeout_ms) {
    control(world_.rank).cpus = calling_thread_cpus();  // published with the first step
  }

  ~ShmCommunicator() override {
    std::atomic_ref<uint32_t> progress(control(world_.rank).progress);
    if (progress.fetch_or(kClosed, std::memory_order_acq_rel) & kSleepers) {
      futex_wake_all(&control(world_.rank).progress);
    }
  }

  const char* name() const override { return "shm"; }
  World world() const override { return world_; }

  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override;
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes, std::byte* out) override;
  Status barrier() override;
  WaitState wait_state() const override { return {collectives_, tag_text(tag_), {}}; }

 private:
  /// A piece of an all_reduce: elements [begin, begin + width) of planes of `count`.
  struct Piece {
    const ReducePlan& plan;
    const float* own;
    float* out;
    size_t count;
    size_t begin;
    size_t width;
  };

  RankControl& control(int rank) const { return reinterpret_cast<RankControl*>(segment_.data())[rank]; }
  /// The slot that `rank` fills, or filled, in the given step (counted from 0).
  std::byte* slot(int rank, uint32_t step) const {
    const size_t index = static_cast<size_t>(rank) * 2 + step % 2;
    return segment_.data() + static_cast<size_t>(world_.size) * sizeof(RankControl) + index * slot_bytes_;
  }
  float* float_slot(int rank, uint32_t step) const { return reinterpret_cast<float*>(slot(rank, step)); }
  /// Planes in a slot start at cache lines.
  static size_t stride(size_t width) { return (width + kLineFloats - 1) / kLineFloats * kLineFloats; }

  Status begin(uint64_t tag);
  Status one_step(const Piece& piece);
  Status two_steps(const Piece& piece);
  void list_planes(const Piece& piece, uint32_t step, Slice slice);
  Status exchange();
  Status wait_for(int peer);
  Status wait_slowly(int peer);
  Status sleep_for(int peer, Deadline deadline);
  Status fail(Status status) { return failed_ = std::move(status); }
  Status timed_out();

  const World world_;
  const ShmSegment segment_;
  const size_t slot_bytes_;
  const int64_t timeout_ms_;
  int64_t spin_ns_ = -1;           // known after the first step, when all have shown their CPUs
  uint32_t step_ = 0;              // steps published so far; wraps
  uint64_t collectives_ = 0;       // begun so far, for messages
  uint64_t tag_ = 0;               // of the running collective
  std::optional<Deadline> until_;  // of the running collective, from its first sleep on: no clock is read before
  Status failed_;                  // the first error; every later call returns it
  std::vector<const float*> planes_;
};

Status ShmCommunicator::begin(uint64_t tag) {
  tag_ = tag;
  ++collectives_;
  until_.reset();
  return failed_;
}

Status ShmCommunicator::all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world_));
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kAllReduce, count)));
  const int most = *std::max_element(plan.contributions.begin(), plan.contributions.end());
  const size_t widest = slot_bytes_ / sizeof(float) / static_cast<size_t>(most) / kLineFloats * kLineFloats;
  if (widest == 0) {
    return Status::error(Code::kInvalidArgument,
                         cat("all_reduce: ", most, " contributions do not fit a slot of ", slot_bytes_, " bytes"));
  }
  const bool sliced = world_.size > 2 && count * sizeof(float) >= kSlicedFromBytes;
  for (size_t at = 0; at < count; at += widest) {
    const Piece piece{plan, own, out, count, at, std::min(widest, count - at)};
    SHOAL_RETURN_IF_ERROR(sliced ? two_steps(piece) : one_step(piece));
  }
  return {};
}

Status ShmCommunicator::one_step(const Piece& piece) {
  const uint32_t step = step_;
  float* mine = float_slot(world_.rank, step);
  for (int plane = 0; plane < piece.plan.contributions[world_.rank]; ++plane) {
    std::memcpy(mine + plane * stride(piece.width), piece.own + plane * piece.count + piece.begin,
                piece.width * sizeof(float));
  }
  SHOAL_RETURN_IF_ERROR(exchange());
  list_planes(piece, step, {0, piece.width});
  tree_sum(piece.plan.finish, planes_, piece.out + piece.begin, piece.width);
  return {};
}

Status ShmCommunicator::two_steps(const Piece& piece) {
  const Slice slice = slice_of(world_.rank, world_.size, piece.width);
  const uint32_t step = step_;
  float* mine = float_slot(world_.rank, step);
  for (int plane = 0; plane < piece.plan.contributions[world_.rank]; ++plane) {  // nobody reads my own slice there
    const float* from = piece.own + plane * piece.count + piece.begin;
    float* to = mine + plane * stride(piece.width);
    std::memcpy(to, from, slice.begin * sizeof(float));
    std::memcpy(to + slice.end, from + slice.end, (piece.width - slice.end) * sizeof(float));
  }
  SHOAL_RETURN_IF_ERROR(exchange());

  float* sum = float_slot(world_.rank, step + 1);
  list_planes(piece, step, slice);
  tree_sum(piece.plan.finish, planes_, sum, slice.size());
  SHOAL_RETURN_IF_ERROR(exchange());
  for (int rank = 0; rank < world_.size; ++rank) {
    const Slice theirs = slice_of(rank, world_.size, piece.width);
    std::memcpy(piece.out + piece.begin + theirs.begin, float_slot(rank, step + 1), theirs.size() * sizeof(float));
  }
  return {};
}

/// Fills planes_: every rank's planes at the slice's first element; this rank's own come from where they are.
void ShmCommunicator::list_planes(const Piece& piece, uint32_t step, Slice slice) {
  planes_.clear();
  for (int rank = 0; rank < world_.size; ++rank) {
    const bool mine = rank == world_.rank;
    const float* first = mine ? piece.own + piece.begin : float_slot(rank, step);
    const size_t next = mine ? piece.count : stride(piece.width);
    for (int plane = 0; plane < piece.plan.contributions[rank]; ++plane) {
      planes_.push_back(first + plane * next + slice.begin);
    }
  }
}

Status ShmCommunicator::gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                               std::byte* out) {
  SHOAL_RETURN_IF_ERROR(check_gather(root, mine.size(), sizes, world_));
  size_t largest = 0;
  size_t total = 0;
  for (const size_t size : sizes) {
    largest = std::max(largest, size);
    total += size;
  }
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kGather, total)));
  for (size_t at = 0; at < largest; at += slot_bytes_) {
    const auto width = [&](int rank) { return std::min(slot_bytes_, sizes[rank] - std::min(sizes[rank], at)); };
    const uint32_t step = step_;
    if (world_.rank != root && width(world_.rank) > 0) {
      std::memcpy(slot(world_.rank, step), mine.data() + at, width(world_.rank));
    }
    SHOAL_RETURN_IF_ERROR(exchange());
    if (world_.rank != root) continue;
    std::byte* to = out;
    for (int rank = 0; rank < world_.size; to += sizes[rank++]) {
      if (width(rank) == 0) continue;
      std::memcpy(to + at, rank == root ? mine.data() + at : slot(rank, step), width(rank));
    }
  }
  return {};
}

Status ShmCommunicator::barrier() {
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kBarrier, 0)));
  return exchange();
}

/// One step: publishes this rank's slot and returns when every peer has published its own.
Status ShmCommunicator::exchange() {
  RankControl& mine = control(world_.rank);
  std::atomic_ref<uint64_t>(mine.tags[step_ % 2]).store(tag_, std::memory_order_relaxed);
  ++step_;
  // An exchange rather than a store: it takes the sleepers' flag in the same instant, so none is missed.
  const uint32_t before = std::atomic_ref<uint32_t>(mine.progress).exchange(step_ * kStep, std::memory_order_acq_rel);
  if (before & kSleepers) futex_wake_all(&mine.progress);
  // While the peers' numbers come, get back the next slot's lines, which they hold since they read them: 5-10 % at 8
  // KiB.
  const std::byte* next = slot(world_.rank, step_);
  for (size_t at = 0; at < kPrefetchBytes && at < slot_bytes_; at += 64) prefetch_for_write(next + at);
  for (int distance = 1; distance < world_.size; ++distance) {
    SHOAL_RETURN_IF_ERROR(wait_for((world_.rank + distance) % world_.size));
  }
  if (spin_ns_ < 0) {
    std::vector<CpuMask> masks;
    for (int rank = 0; rank < world_.size; ++rank) masks.push_back(control(rank).cpus);
    spin_ns_ = spin_budget_ns(masks);
  }
  return {};
}

Status ShmCommunicator::wait_for(int peer) {
  RankControl& theirs = control(peer);
  const std::atomic_ref<uint32_t> progress(theirs.progress);
  if (!reached(progress.load(std::memory_order_acquire), step_ * kStep)) SHOAL_RETURN_IF_ERROR(wait_slowly(peer));
  const uint64_t tag = std::atomic_ref<uint64_t>(theirs.tags[(step_ - 1) % 2]).load(std::memory_order_relaxed);
  if (tag == tag_) return {};
  return fail(Status::error(Code::kInternal, cat("shm collective ", collectives_, ": this rank is in ", tag_text(tag_),
                                                 ", rank ", peer, " in ", tag_text(tag))));
}

/// Polls for the spin budget, then sleeps until the deadline.
Status ShmCommunicator::wait_slowly(int peer) {
  const std::atomic_ref<uint32_t> progress(control(peer).progress);
  const auto poll_until = Clock::now() + std::chrono::nanoseconds(std::max<int64_t>(spin_ns_, 0));
  do {
    for (int i = 0; i < 16; ++i) {
      if (reached(progress.load(std::memory_order_acquire), step_ * kStep)) return {};
      cpu_relax();
    }
  } while (Clock::now() < poll_until);
  if (!until_) until_ = Deadline::after_ms(timeout_ms_);
  return sleep_for(peer, *until_);
}

Status ShmCommunicator::sleep_for(int peer, Deadline deadline) {
  uint32_t* word = &control(peer).progress;
  std::atomic_ref<uint32_t> progress(*word);
  for (;;) {
    uint32_t seen = progress.load(std::memory_order_acquire);
    if (reached(seen, step_ * kStep)) return {};
    if (seen & kClosed) {
      return fail(Status::error(Code::kUnavailable, cat("shm collective ", collectives_, " (", tag_text(tag_),
                                                        "): rank ", peer, " has closed its end")));
    }
    if (deadline.passed()) return fail(timed_out());
    if (!(seen & kSleepers)) {
      if (!progress.compare_exchange_strong(seen, seen | kSleepers, std::memory_order_acq_rel)) continue;
      seen |= kSleepers;
    }
    futex_wait(word, seen, deadline.remaining_ms());  // however it ends, the word is what counts
  }
}

Status ShmCommunicator::timed_out() {
  std::string missing;
  for (int rank = 0; rank < world_.size; ++rank) {
    const uint32_t word = std::atomic_ref<uint32_t>(control(rank).progress).load(std::memory_order_acquire);
    if (reached(word, step_ * kStep)) continue;
    const uint32_t behind = (step_ * kStep - (word & ~(kStep - 1))) / kStep;
    missing +=
        cat(missing.empty() ? "rank " : ", rank ", rank, " (", behind, behind == 1 ? " step" : " steps", " behind)");
  }
  return Status::error(Code::kDeadlineExceeded, cat("shm collective ", collectives_, " (", tag_text(tag_), "), step ",
                                                    step_, ": waited ", timeout_ms_, " ms for ", missing));
}

}  // namespace

size_t shm_communicator_bytes(int world_size, size_t slot_bytes) {
  const size_t slot = (slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  const size_t bytes = static_cast<size_t>(world_size) * (sizeof(RankControl) + 2 * slot);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Result<std::unique_ptr<Communicator>> open_shm_communicator(World world, int fd, size_t bytes, int64_t timeout_ms) {
  if (world.size < 1 || world.rank < 0 || world.rank >= world.size) {
    return Status::error(Code::kInvalidArgument, cat("shm communicator: rank ", world.rank, " of ", world.size));
  }
  const size_t needed = shm_communicator_bytes(world.size, kMinShmSlotBytes);
  if (bytes < needed) {
    return Status::error(Code::kInvalidArgument, cat("shm communicator of ", world.size, " ranks: ", bytes,
                                                     " bytes are given, at least ", needed, " are needed"));
  }
  SHOAL_ASSIGN_OR_RETURN(ShmSegment segment, ShmSegment::open(fd, bytes));
  const size_t share = bytes / static_cast<size_t>(world.size) - sizeof(RankControl);
  const size_t slot_bytes = share / 2 / kSlotAlignment * kSlotAlignment;
  return std::unique_ptr<Communicator>(
      std::make_unique<ShmCommunicator>(world, std::move(segment), slot_bytes, timeout_ms));
}

}  // namespace shoal
