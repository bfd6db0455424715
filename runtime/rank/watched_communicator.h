#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/comm/communicator.h"
#include "runtime/rank/watched_collective.h"

namespace shoal {

/// Wraps a communicator and remembers whether it has ever failed, which decides whether a rank
/// blames its transport, and how long the collectives have taken. Calls a function after each
/// collective that has succeeded, because that is progress; an error of this function becomes the
/// collective's, and blames nobody.
class WatchedCommunicator final : public Communicator {
 public:
  WatchedCommunicator(std::unique_ptr<Communicator> inner, std::function<Status()> after_each)
      : inner_(std::move(inner)), after_each_(std::move(after_each)) {
    if (DeviceCollective* devices = inner_->on_devices()) devices_.emplace(*devices);
  }

  /// True if a collective has ended with an error, which finishes the group.
  bool failed() const { return failed_ || (devices_ && devices_->failed()); }

  /// How long all its collectives have taken: waiting for the other ranks, and moving bytes.
  Clock::duration spent() const {
    return spent_ + (devices_ ? devices_->spent() : Clock::duration{0});
  }

  /// The rank waits for its device, or no longer does.
  void device_waits(bool waits) {
    if (devices_) devices_->set_waits(waits);
  }

  const char* name() const override { return inner_->name(); }
  World world() const override { return inner_->world(); }
  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override {
    return timed([&] { return inner_->all_reduce(plan, own, out, count); });
  }
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override {
    return timed([&] { return inner_->gather(root, mine, sizes, out); });
  }
  Status barrier() override {
    return timed([&] { return inner_->barrier(); });
  }
  WaitState wait_state() const override {
    return devices_ && devices_->is_waited_for() ? devices_->wait_state() : inner_->wait_state();
  }
  std::optional<Waited> waited() const override { return inner_->waited(); }
  DeviceCollective* on_devices() override { return devices_ ? &*devices_ : nullptr; }

 private:
  template <typename Collective>
  Status timed(const Collective& collective) {
    const Clock::time_point began = Clock::now();
    Status status = collective();
    spent_ += Clock::now() - began;
    failed_ |= !status.ok();
    return status.ok() ? after_each_() : status;
  }

  const std::unique_ptr<Communicator> inner_;
  const std::function<Status()> after_each_;
  std::optional<WatchedCollective> devices_;
  bool failed_ = false;
  Clock::duration spent_{0};
};

}  // namespace shoal
