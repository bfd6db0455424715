#pragma once
#include "runtime/supervisor/worker_group.h"

namespace shoal {

/// What to do after a group has failed: pure, no clock of its own.
class RestartPolicy {
 public:
  enum class Next { kSameRung, kNextRung, kGiveUp };

  /// max_restarts: so many restarts are granted; after forget_s of health their count starts anew.
  explicit RestartPolicy(int max_restarts, double forget_s = 60)
      : max_restarts_(max_restarts), forget_s_(forget_s) {}

  /// A group runs, at this time.
  void started(double now_s) { healthy_since_s_ = now_s; }

  /// A group has failed. A rung that fails twice by itself is left; what came from outside, or
  /// before and after bytes are moved (spawn, load), does not count against it.
  Next failed(const GroupFailure& failure, double now_s);

  int restarts() const { return restarts_; }

 private:
  const int max_restarts_;
  const double forget_s_;
  int restarts_ = 0;
  int rung_failures_ = 0;  // of the current rung, its own
  double healthy_since_s_ = -1;
};

}  // namespace shoal
