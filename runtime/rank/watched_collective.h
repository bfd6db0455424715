#pragma once
#include <optional>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/device/device_collective.h"

namespace shoal {

/// The collectives on devices of a WatchedCommunicator. Wraps those of the communicator, which must
/// outlive it, and remembers for them what WatchedCommunicator remembers for its own. It counts
/// only time of the host: the time to enqueue, and the time of what the host does for the transfer.
/// Enqueuing a collective does not count as progress.
class WatchedCollective final : public DeviceCollective {
 public:
  explicit WatchedCollective(DeviceCollective& inner) : inner_(inner) {}

  bool failed() const { return failed_; }
  Clock::duration spent() const { return spent_; }

  /// The rank waits for its device, or no longer does.
  void set_waits(bool waits) { waits_ = waits; }
  /// True if what the rank waits for, or what has failed, is a collective on devices. A rank that
  /// is alone waits for its device only.
  bool is_waited_for() const { return world().size > 1 && (waits_ || failed_ || inside_); }
  WaitState wait_state() const {
    return wait_state_in(inner_, collectives_, tag_ == 0 ? "" : tag_text(tag_));
  }

  const char* name() const override { return inner_.name(); }
  World world() const override { return inner_.world(); }
  bool sums_by_plan() const override { return inner_.sums_by_plan(); }
  Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count,
                            void* stream, Deadline until) override {
    return timed(make_tag(Op::kAllReduce, count),
                 [&] { return inner_.enqueue_all_reduce(plan, own, out, count, stream, until); });
  }
  Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                            Deadline until) override {
    return timed(make_tag(Op::kGather, bytes_each),
                 [&] { return inner_.enqueue_all_gather(mine, all, bytes_each, stream, until); });
  }
  Status check() override {
    Status status = inner_.check();
    failed_ |= !status.ok();
    return status;
  }
  std::optional<std::vector<int>> missing() const override { return inner_.missing(); }

 private:
  template <typename Collective>
  Status timed(uint64_t tag, const Collective& collective) {
    ++collectives_;
    tag_ = tag;
    inside_ = true;
    const Clock::time_point began = Clock::now();
    Status status = collective();
    spent_ += Clock::now() - began;
    failed_ |= !status.ok();
    inside_ = false;
    return status;
  }

  DeviceCollective& inner_;
  uint64_t collectives_ = 0;
  uint64_t tag_ = 0;
  bool inside_ = false;
  bool waits_ = false;
  bool failed_ = false;
  Clock::duration spent_{0};
};

}  // namespace shoal
