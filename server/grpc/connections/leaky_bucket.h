#pragma once
#include <algorithm>
#include <chrono>

#include "runtime/base/running_clock.h"

namespace shoal {

/// Counts bytes, of which it forgets some with time. Not thread-safe.
class LeakyBucket {
 public:
  static constexpr double kLeakPerSecond = 1024;

  /// Adds bytes at this time, which never goes back. A negative number takes bytes away.
  void fill(double bytes, RunningClock::time_point now) {
    leak(now);
    bytes_ = std::max(0.0, bytes_ + bytes);
  }
  void empty(RunningClock::time_point now) {
    leak(now);
    bytes_ = 0;
  }
  double bytes() const { return bytes_; }

 private:
  void leak(RunningClock::time_point now) {
    const std::chrono::duration<double> passed = now - last_;
    last_ = now;
    bytes_ = std::max(0.0, bytes_ - kLeakPerSecond * passed.count());
  }

  double bytes_ = 0;
  RunningClock::time_point last_{};
};

}  // namespace shoal
