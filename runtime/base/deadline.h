#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "runtime/base/running_clock.h"

namespace shoal {

using Clock = std::chrono::steady_clock;

/// A moment by which something must have happened; infinite() never passes. Only time in which this
/// process runs brings it nearer (RunningClock), so that no pause of the machine makes it pass. A
/// value type.
class Deadline {
 public:
  /// A hundred years or more give infinite(), so that no number from a user can overflow the clock.
  /// A negative number counts as 0.
  static Deadline after_ms(int64_t milliseconds) {
    if (milliseconds >= kForeverMs) return infinite();
    return Deadline(RunningClock::now() +
                    std::chrono::milliseconds(milliseconds < 0 ? 0 : milliseconds));
  }
  /// The same in seconds; NaN gives infinite().
  static Deadline after_s(double seconds) {
    if (!(seconds < kForeverMs / 1e3)) return infinite();
    return after_ms(seconds < 0 ? 0 : static_cast<int64_t>(seconds * 1e3));
  }
  static Deadline infinite() { return Deadline(RunningClock::time_point::max()); }

  bool passed() const {
    return at_ != RunningClock::time_point::max() && RunningClock::now() >= at_;
  }
  /// How long to wait before the next look at this deadline, in milliseconds for poll(): the time
  /// that is left, rounded up, at least 0, at most `limit`, and at most RunningClock::kLookMs. So
  /// the end of such a wait says nothing: ask passed(). With an infinite deadline it is `limit`.
  int remaining_ms(int limit = 1 << 30) const {
    if (at_ == RunningClock::time_point::max()) return limit;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(at_ - RunningClock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, std::min(limit, RunningClock::kLookMs)));
  }
  /// The time that is left, at least 0.
  double seconds_left() const {
    if (at_ == RunningClock::time_point::max()) return std::numeric_limits<double>::infinity();
    return std::max(0.0, std::chrono::duration<double>(at_ - RunningClock::now()).count());
  }
  RunningClock::time_point at() const { return at_; }

 private:
  static constexpr int64_t kForeverMs = int64_t{100} * 365 * 24 * 3600 * 1000;
  explicit Deadline(RunningClock::time_point at) : at_(at) {}
  RunningClock::time_point at_;
};

inline Deadline sooner(Deadline a, Deadline b) {
  return b.at() < a.at() ? b : a;
}

/// Seconds since start, for figures in logs and reports.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// How long to wait for the kernel to end a killed process, in milliseconds. A process that hangs
/// in the kernel (a dead file server, a driver) does not die of SIGKILL, so every wait for a death
/// needs a bound.
inline constexpr int64_t kDeathMs = 2'000;

}  // namespace shoal
