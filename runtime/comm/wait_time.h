#pragma once
#include <algorithm>
#include <chrono>

#include "runtime/base/running_clock.h"

namespace shoal {

/// How long a rank has waited for parts of other ranks.
struct Waited {
  RunningClock::duration all{0};
  /// The part of `all` in which only the rank before this one (World::previous()) was missing.
  RunningClock::duration for_previous{0};
};

/// Counts how long a rank waits for the parts of other ranks. A wait begins when the rank needs a
/// part. It ends at the moment when the part was ready, which the rank that brings the part states.
/// So a delay does not count if this rank could go on but does not get to run, for example because
/// of a quota of processor time. If nobody states the moment for a part, the wait ends at the last
/// look at which the part was certainly not there. A pause of the whole process counts for at most
/// 0.1 s per look, as in RunningClock. Used by one thread.
class WaitTime {
 public:
  /// The rank needs parts of others from now on.
  void begin() { counted_to_ = looked_at_ = RunningClock::wall(); }

  /// A part is still missing, and the rank looks for it again after this call. It has waited up to
  /// the last such call, but not surely up to now: it may have been held up since it looked.
  void look() {
    count_to(looked_at_);
    looked_at_ = RunningClock::wall();
  }

  /// Whether the part of the previous rank alone is missing from now on.
  void only_previous_is_missing(bool only) { only_previous_ = only; }

  /// A part has been found. ready_at: when it became ready, on the wall's clock; 0 if unknown.
  void come(RunningClock::duration ready_at) {
    count_to(std::min(ready_at, looked_at_));
    count_to(ready_at);
  }

  const Waited& total() const { return total_; }

 private:
  void count_to(RunningClock::duration moment) {
    if (moment <= counted_to_) return;
    const RunningClock::duration most = std::chrono::milliseconds(RunningClock::kMostPerLookMs);
    const RunningClock::duration waited = std::min(moment - counted_to_, most);
    total_.all += waited;
    if (only_previous_) total_.for_previous += waited;
    counted_to_ = moment;
  }

  RunningClock::duration counted_to_{0}, looked_at_{0};
  bool only_previous_ = false;
  Waited total_;
};

}  // namespace shoal
