#include "runtime/comm/device/host_memfd_collective.h"

#include <algorithm>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/base/page_size.h"
#include "runtime/comm/check_arguments.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/comm/slot_flags.h"
#include "runtime/comm/spin.h"
#include "runtime/comm/tree_sum.h"
#include "runtime/comm/wait_time.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {
namespace {

// Bytes of one slot. A piece costs the host a wait for its device, so pieces are larger than shm's.
constexpr size_t kSlotBytes = size_t{1} << 20;
constexpr size_t kLineFloats = 32;  // planes in a slot start at cache lines of the device

/// The slot protocol of shm_communicator.h with devices as writers and readers. A rank publishes a
/// step when its device has finished writing the slot. Because there is only one stream, the device
/// has then also finished its sums of earlier steps.
class HostMemfdCollective final : public DeviceCollective {
 public:
  HostMemfdCollective(std::shared_ptr<Device> device, World world, ShmSegment segment,
                      Interrupted interrupted)
      : device_(std::move(device)),
        world_(world),
        segment_(std::move(segment)),
        interrupted_(std::move(interrupted)),
        flags_(world, segment_.data()) {}
  ~HostMemfdCollective() override {
    flags_.close();
    if (mapped_ != nullptr) (void)device_->module().unregister_host(segment_.data());
  }

  /// Pins the whole segment for the device.
  Status open() {
    SHOAL_ASSIGN_OR_RETURN(written_, device_->make_event());
    return device_->check(
        device_->module().register_host(segment_.data(), segment_.size(), &mapped_),
        "cudaHostRegister of the ranks' memfd");
  }

  const char* name() const override { return "host-memfd"; }
  World world() const override { return world_; }
  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline until) override;
  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline until) override;
  Status check() override { return failed_; }
  std::optional<Waited> waited() const override { return wait_time_.total(); }
  std::optional<std::vector<int>> missing() const override { return absent(); }

 private:
  Status begin(uint64_t tag, Deadline until);
  Status reduce_piece(const ReducePiece& piece, void* stream);
  Status exchange(void* stream);
  Status wait_for(int peer);
  Status sleep_for(int peer);
  std::vector<int> absent() const;
  Status timed_out() const;
  Status fail(Status status);
  std::string here() const {
    return cat("host-memfd collective ", collectives_, " (", tag_text(tag_), ")");
  }
  std::byte* slot(int rank, uint32_t step) const {
    const size_t index = static_cast<size_t>(rank) * 2 + step % 2;
    return static_cast<std::byte*>(mapped_) +
           static_cast<size_t>(world_.size) * sizeof(RankControl) + index * kSlotBytes;
  }
  static size_t stride(size_t width) {
    return (width + kLineFloats - 1) / kLineFloats * kLineFloats;
  }

  const std::shared_ptr<Device> device_;
  const World world_;
  const ShmSegment segment_;
  const Interrupted interrupted_;
  SharedFlags flags_;
  void* mapped_ = nullptr;  // the device's address of the segment
  Device::Event written_;   // recorded when this rank's slot has been filled
  int64_t spin_ns_ = 0;     // how long to poll before a sleep
  uint32_t step_ = 0;       // steps published so far; wraps
  uint64_t collectives_ = 0;
  uint64_t tag_ = 0;
  WaitTime wait_time_;
  Clock::time_point began_;                // start of the running collective
  Deadline until_ = Deadline::infinite();  // deadline of the running collective
  Status failed_;                          // the first error; every later call returns it
  std::vector<int> waited_for_;            // the missing ranks at the time of that error
};

Status HostMemfdCollective::begin(uint64_t tag, Deadline until) {
  SHOAL_RETURN_IF_ERROR(failed_);
  tag_ = tag;
  ++collectives_;
  began_ = Clock::now();
  until_ = until;
  return {};
}

Status HostMemfdCollective::enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out,
                                               size_t count, void* stream, Deadline until) {
  SHOAL_RETURN_IF_ERROR(check_plan(plan, world_));
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kAllReduce, count), until));
  const int most = *std::max_element(plan.contributions.begin(), plan.contributions.end());
  const size_t widest =
      kSlotBytes / sizeof(float) / static_cast<size_t>(most) / kLineFloats * kLineFloats;
  if (plan.total_contributions() > kShoalMostPlanes || widest == 0) {
    return Status::error(Code::kInvalidArgument,
                         cat(here(), ": ", plan.total_contributions(),
                             " contributions are more than a tree sum takes"));
  }
  for (size_t at = 0; at < count; at += widest) {
    SHOAL_RETURN_IF_ERROR(
        reduce_piece({plan, own, out, count, at, std::min(widest, count - at)}, stream));
  }
  return {};
}

Status HostMemfdCollective::reduce_piece(const ReducePiece& piece, void* stream) {
  const uint32_t step = step_;
  const size_t pitch = stride(piece.width);
  auto* mine = reinterpret_cast<float*>(slot(world_.rank, step));
  for (int plane = 0; plane < piece.plan.contributions[static_cast<size_t>(world_.rank)]; ++plane) {
    const float* from = piece.own + static_cast<size_t>(plane) * piece.count + piece.begin;
    SHOAL_RETURN_IF_ERROR(device_->copy(mine + static_cast<size_t>(plane) * pitch, from,
                                        piece.width * sizeof(float), stream));
  }
  SHOAL_RETURN_IF_ERROR(exchange(stream));

  ShoalTreeSum sum{};
  for (int rank = 0; rank < world_.size; ++rank) {
    const bool own = rank == world_.rank;  // read in place
    const float* first =
        own ? piece.own + piece.begin : reinterpret_cast<const float*>(slot(rank, step));
    for (int plane = 0; plane < piece.plan.contributions[static_cast<size_t>(rank)]; ++plane) {
      sum.merges[sum.values] =
          static_cast<uint8_t>(piece.plan.finish.merges[static_cast<size_t>(sum.values)]);
      sum.planes[sum.values++] = first + static_cast<size_t>(plane) * (own ? piece.count : pitch);
    }
  }
  sum.out = piece.out + piece.begin;
  sum.count = static_cast<int64_t>(piece.width);
  return device_->tree_sum(sum, stream);
}

Status HostMemfdCollective::enqueue_all_gather(const void* mine, void* all, size_t bytes_each,
                                               void* stream, Deadline until) {
  SHOAL_RETURN_IF_ERROR(begin(make_tag(Op::kGather, bytes_each), until));
  const auto* from = static_cast<const std::byte*>(mine);
  auto* to = static_cast<std::byte*>(all);
  for (size_t at = 0; at < bytes_each; at += kSlotBytes) {
    const size_t width = std::min(kSlotBytes, bytes_each - at);
    const uint32_t step = step_;
    SHOAL_RETURN_IF_ERROR(device_->copy(slot(world_.rank, step), from + at, width, stream));
    SHOAL_RETURN_IF_ERROR(exchange(stream));
    for (int rank = 0; rank < world_.size; ++rank) {
      std::byte* theirs = to + static_cast<size_t>(rank) * bytes_each + at;
      SHOAL_RETURN_IF_ERROR(device_->copy(theirs, slot(rank, step), width, stream));
    }
  }
  return {};
}

/// One step: waits until this rank's device has filled the slot, publishes the slot, and waits
/// until every peer has published its own.
Status HostMemfdCollective::exchange(void* stream) {
  SHOAL_RETURN_IF_ERROR(device_->record(written_.get(), stream));
  if (Status status = device_->wait(written_.get(), until_, interrupted_); !status.ok()) {
    return fail(status.while_doing(cat(here(), ": filling this rank's slot")));
  }
  flags_.publish(++step_, tag_);
  for (int distance = 1; distance < world_.size; ++distance) {
    const int peer = (world_.rank + distance) % world_.size;
    wait_time_.only_previous_is_missing(peer == world_.previous());
    SHOAL_RETURN_IF_ERROR(wait_for(peer));
    if (const uint64_t tag = flags_.tag(peer, step_ - 1); tag != tag_) {
      return fail(Status::error(Code::kInternal, cat(here(), ": this rank is in ", tag_text(tag_),
                                                     ", rank ", peer, " in ", tag_text(tag)))
                      .blamed_on(Fault::kTransport));
    }
  }
  // The spin budget is known after the first step, when all ranks have published their CPUs.
  if (spin_ns_ == 0) {
    std::vector<CpuMask> masks;
    for (int rank = 0; rank < world_.size; ++rank) masks.push_back(flags_.cpus(rank));
    spin_ns_ = spin_budget_ns(masks);
  }
  return {};
}

/// Polls for a while, because a wake-up costs as much as the whole exchange. Then sleeps.
Status HostMemfdCollective::wait_for(int peer) {
  constexpr int kPolls = 64;
  Clock::time_point poll_until;
  for (bool first = true;; first = false) {
    for (int i = 0; i < kPolls; ++i) {
      if (reached(flags_.word(peer), step_)) {
        if (!first) wait_time_.come(flags_.ready_at(peer, step_ - 1));
        return {};
      }
      cpu_relax();
    }
    first ? wait_time_.begin() : wait_time_.look();
    const auto now = Clock::now();
    if (first) poll_until = now + std::chrono::nanoseconds(spin_ns_);
    if (now >= poll_until) return sleep_for(peer);
  }
}

Status HostMemfdCollective::sleep_for(int peer) {
  NextLook look;
  for (;;) {
    const uint32_t seen = flags_.word(peer);
    if (reached(seen, step_)) {
      wait_time_.come(flags_.ready_at(peer, step_ - 1));
      return {};
    }
    wait_time_.look();
    if (seen & kClosed) {
      return fail(
          Status::error(Code::kUnavailable, cat(here(), ": rank ", peer, " has closed its end")));
    }
    if (until_.passed()) return fail(timed_out());
    if (look.due()) {
      if (interrupted_) {
        if (Status stop = interrupted_(); !stop.ok()) return fail(std::move(stop));
      }
    }
    flags_.sleep(peer, step_, until_.remaining_ms(kSliceMs));
  }
}

/// The host publishes the steps, so it knows which ranks are missing. No rank is missing while this
/// rank's own device fills the slot.
std::vector<int> HostMemfdCollective::absent() const {
  if (!failed_.ok()) return waited_for_;
  std::vector<int> ranks;
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank != world_.rank && !reached(flags_.word(rank), step_)) ranks.push_back(rank);
  }
  return ranks;
}

Status HostMemfdCollective::fail(Status status) {
  waited_for_ = absent();
  return failed_ = std::move(status);
}

Status HostMemfdCollective::timed_out() const {
  std::string ranks;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began_);
  for (const int rank : absent()) ranks += cat(ranks.empty() ? "rank " : ", rank ", rank);
  return Status::error(Code::kDeadlineExceeded, cat(here(), ", step ", step_, ": waited ",
                                                    waited.count(), " ms for ", ranks));
}

}  // namespace

int64_t host_memfd_bytes(int world_size) {
  return static_cast<int64_t>(
      whole_pages(static_cast<size_t>(world_size) * (sizeof(RankControl) + 2 * kSlotBytes)));
}

Result<std::unique_ptr<DeviceCollective>> open_host_memfd_collective(std::shared_ptr<Device> device,
                                                                     World world, int fd,
                                                                     int64_t bytes,
                                                                     Interrupted interrupted) {
  if (world.size < 1 || world.size > kShoalMostRanks || world.rank < 0 ||
      world.rank >= world.size) {
    return Status::error(Code::kInvalidArgument,
                         cat("host-memfd: rank ", world.rank, " of ", world.size, "; at most ",
                             static_cast<int>(kShoalMostRanks), " ranks"));
  }
  if (bytes != host_memfd_bytes(world.size)) {
    return Status::error(Code::kInvalidArgument,
                         cat("host-memfd of ", counted(world.size, "rank"), ": ", bytes,
                             " bytes are given, ", host_memfd_bytes(world.size), " are needed"));
  }
  SHOAL_ASSIGN_OR_RETURN(ShmSegment segment, ShmSegment::open(fd, static_cast<size_t>(bytes)));
  auto collective = std::make_unique<HostMemfdCollective>(
      std::move(device), world, std::move(segment), std::move(interrupted));
  SHOAL_RETURN_IF_ERROR(collective->open());
  return std::unique_ptr<DeviceCollective>(std::move(collective));
}

}  // namespace shoal
