#pragma once
#include <chrono>
#include <optional>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/supervisor/rank_process.h"

namespace shoal {

/// Why a step is ended although nobody has died.
struct StepVerdict {
  enum class Why {
    kSilent,    ///< no rank moves, and none computes
    kSpinning,  ///< a rank computes, has had enough of the processor, and gets nowhere
    kStarved,   ///< a rank computes, and gets too little of the processor
  };
  Why why = Why::kSilent;
  double seconds = 0;      ///< since a rank last completed a part of its work
  int rank = -1;           ///< that computes; -1 with kSilent
  double cpu_seconds = 0;  ///< that this rank used in about this time
};

/// Decides when a step has hung. A step may take as long as it likes if some rank completes another
/// part of its work (RankContext::moved) within the time-out. If none does, a rank may still be in
/// the middle of a long part. It then uses processor time, or waits for no more than a processor,
/// so the step gets more time, up to ten times the time-out. A step also gets more time if a rank
/// that waits for others gets no processor itself. Not thread-safe.
class StepWatch {
 public:
  explicit StepWatch(double timeout_s) : timeout_s_(timeout_s) {}

  /// A step begins, or a rank has completed another part of it.
  void moved();

  /// When to judge next.
  Deadline next() const { return next_; }

  /// Judges once next() has passed and all that the ranks have sent has been read. Nullopt: the
  /// step goes on. Keeps in the ranks what they have used of the processor.
  std::optional<StepVerdict> judge(std::vector<RankProcess>& ranks);

 private:
  double timeout_s_;
  RunningClock::time_point moved_at_ = RunningClock::now();
  Deadline next_ = Deadline::infinite();
  int looks_ = 0;  // at the processor time of the ranks since moved_at_
};

}  // namespace shoal
