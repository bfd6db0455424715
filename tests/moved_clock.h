#pragma once
#include <atomic>

#include "runtime/base/running_clock.h"

namespace shoal {

/// While it lives, RunningClock stands still in this process, and moves only when the test says so.
/// What waits for a deadline looks every RunningClock::kLookMs, and so finds out soon. Other
/// processes are not concerned. One at a time.
class MovedClock {
 public:
  MovedClock() {
    began_ = RunningClock::now();
    now_ = began_.time_since_epoch();
    RunningClock::set_source([] { return now_.load(); });
  }
  ~MovedClock() { RunningClock::set_source(nullptr); }
  MovedClock(const MovedClock&) = delete;
  MovedClock& operator=(const MovedClock&) = delete;

  static void advance(double seconds) {
    const auto time =
        std::chrono::duration_cast<RunningClock::duration>(std::chrono::duration<double>(seconds));
    RunningClock::duration before = now_.load();
    while (!now_.compare_exchange_weak(before, before + time)) continue;
  }

  RunningClock::time_point began() const { return began_; }

 private:
  RunningClock::time_point began_;
  inline static std::atomic<RunningClock::duration> now_{};
};

}  // namespace shoal
