#pragma once
#include <cstdint>
#include <string>

#include "runtime/base/failure.h"

namespace shoal {

/// A restart cures only what may not happen again. A model that does not load will not load the
/// next time.
bool restart_may_cure(Fault fault);

/// Decides what to do after a group has failed. It has no clock of its own, so callers pass the
/// time.
class RestartPolicy {
 public:
  enum class Next { kSameRung, kNextRung, kGiveUp };
  /// Ranks that complete this many steps between two kills make progress.
  static constexpr int64_t kStepsThatEarn = 16;

  /// Grants max_restarts restarts. The count begins at zero again after forget_s seconds without a
  /// failure.
  explicit RestartPolicy(int max_restarts, double forget_s = 60)
      : max_restarts_(max_restarts), forget_s_(forget_s) {}

  /// A group has started to run at this time.
  void started(double now_s) { healthy_since_s_ = now_s; }

  /// A group over this rung has failed. good_steps: how many of its steps ended well before. A rung
  /// that fails twice by itself is left. What came from outside does not count against the
  /// rung, and neither does a want of memory, a rank that spins, or what happened while no bytes
  /// were moved (spawn, load, touch) or over another rung. A kill from outside (Fault::kOutside)
  /// after kStepsThatEarn steps costs none of max_restarts.
  Next failed(const Failure& failure, const std::string& rung, double now_s, int64_t good_steps);

  int restarts() const { return restarts_; }  ///< those that count
  /// Whether the restart that the last failed() granted is one of those.
  bool last_counts() const { return last_counts_; }

 private:
  const int max_restarts_;
  const double forget_s_;
  int restarts_ = 0;
  bool last_counts_ = true;
  std::string rung_;       // over which the last group failed
  int rung_failures_ = 0;  // those of rung_ itself
  double healthy_since_s_ = -1;
};

}  // namespace shoal
