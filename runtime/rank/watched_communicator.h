#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "runtime/comm/communicator.h"

namespace shoal {

/// Wraps a communicator and remembers whether it has ever failed, which decides whether a rank
/// blames its transport. Calls a function after each collective that has succeeded, because that is
/// progress; an error of this function becomes the collective's, and blames nobody.
class WatchedCommunicator final : public Communicator {
 public:
  WatchedCommunicator(std::unique_ptr<Communicator> inner, std::function<Status()> after_each)
      : inner_(std::move(inner)), after_each_(std::move(after_each)) {}

  /// True if a collective has ended with an error, which finishes the group.
  bool failed() const { return failed_; }

  const char* name() const override { return inner_->name(); }
  World world() const override { return inner_->world(); }
  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override {
    return note(inner_->all_reduce(plan, own, out, count));
  }
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override {
    return note(inner_->gather(root, mine, sizes, out));
  }
  Status barrier() override { return note(inner_->barrier()); }
  WaitState wait_state() const override { return inner_->wait_state(); }

 private:
  Status note(Status status) {
    failed_ |= !status.ok();
    return status.ok() ? after_each_() : status;
  }

  const std::unique_ptr<Communicator> inner_;
  const std::function<Status()> after_each_;
  bool failed_ = false;
};

}  // namespace shoal
