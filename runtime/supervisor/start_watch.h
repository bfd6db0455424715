#pragma once
#include <optional>
#include <vector>

#include "runtime/base/device_kind.h"
#include "runtime/base/running_clock.h"
#include "runtime/supervisor/rank_process.h"

namespace shoal {

/// Decides when a rank has been silent for too long in a start. Spawn, open, self-test and warm-up
/// may each take a quarter of the time of a start, but not more than 15 s (60 s on devices). Disks,
/// touching gigabytes and compiling are slow: these may take all of it, unless the process is
/// stopped. Time in which a rank gets no processor does not count as silence. There are limits to
/// this: nine times what a phase may take, and half of the start. Not thread-safe.
class StartWatch {
 public:
  StartWatch(double startup_timeout_s, double step_timeout_s, DeviceKind device);

  /// Call this several times a second, when all that the ranks have sent has been read. If a rank
  /// would have run since the last look and has got no processor, that time is not counted for any
  /// rank, because others may wait for this one.
  void look(std::vector<RankProcess>& ranks);

  /// For how many seconds the rank has been silent, if that is too long.
  std::optional<double> too_silent(const RankProcess& rank) const;

 private:
  double most_silence_s(const RankProcess& rank) const;

  double most_phase_s_, step_timeout_s_;
  RunningClock::duration still_forgiven_;              // silence that may still be left out
  std::optional<RunningClock::time_point> looked_at_;  // nullopt: no rank had a deadline
};

}  // namespace shoal
