#pragma once
#include "runtime/base/running_clock.h"

namespace shoal {

/// How long a rank has waited for other ranks. Polls that find nothing count up to the last of
/// them, and a sleep up to its end. A quota of processor time can hold the rank up when it wakes,
/// or between a poll and its look at the clock. That time is not spent waiting for others, but it
/// is counted here all the same. Used by one thread.
class WaitTime {
 public:
  /// The wait begins, or a part of what it waits for has come.
  void begin() { last_ = RunningClock::now(); }

  /// The rank has polled or slept since the last call, and has waited up to now.
  void look() {
    const RunningClock::time_point before = last_;
    begin();
    total_ += last_ - before;
  }

  RunningClock::duration total() const { return total_; }

 private:
  RunningClock::time_point last_;
  RunningClock::duration total_{0};
};

}  // namespace shoal
