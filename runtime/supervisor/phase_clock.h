#pragma once
#include <optional>

#include "runtime/base/deadline.h"
#include "runtime/base/failure.h"

namespace shoal {

/// Measures how long something is in each phase. A pause of the machine counts, because whoever
/// waits for the start waits for that too. Not thread-safe.
class PhaseClock {
 public:
  PhaseClock() = default;
  explicit PhaseClock(Phase first) { enter(first); }

  /// Ends the phase before. Entering the same phase again goes on with it.
  void enter(Phase phase) {
    if (in_ == phase) return;
    leave();
    in_ = phase;
    since_ = Clock::now();
  }
  void leave() {
    if (in_) seconds_[*in_] += std::chrono::duration<double>(Clock::now() - since_).count();
    in_.reset();
  }
  /// How long each phase took that has ended.
  const PhaseSeconds& seconds() const { return seconds_; }

 private:
  PhaseSeconds seconds_;
  std::optional<Phase> in_;
  Clock::time_point since_;
};

}  // namespace shoal
