#pragma once
#include <chrono>
#include <ratio>

namespace shoal {

/// The time in which this process ran. A pause of the whole process (SIGSTOP, a frozen cgroup, a
/// virtual machine that stands still) of any length counts for at most kMostPerLookMs, because a
/// process that could not look at the clock could not see an answer either.
///
/// Each call of now() adds the time since the last call of any thread, up to that bound. So a
/// thread that waits by this clock has to look at it every kLookMs; Deadline::remaining_ms() tells
/// it to. A stretch in which no thread looks, such as a long computation, counts for little too.
/// May be called from any thread.
class RunningClock {
 public:
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<RunningClock>;
  static constexpr bool is_steady = false;  // it never goes back, but it does not run evenly

  /// How often a thread that waits must look.
  static constexpr int kLookMs = 50;
  /// A look may come late on a busy machine, and this time was still spent running.
  static constexpr int kMostPerLookMs = 2 * kLookMs;

  static time_point now();

  /// The wall's clock, for moments that processes tell each other: it runs evenly, through every
  /// pause, and shows the same in every process of the machine.
  static duration wall();

  /// Where the time comes from: nullptr, as always outside of tests, is the wall's clock as
  /// described above. A test's own source is taken as it is, by wall() too; it must never go back.
  using Source = duration (*)();
  static void set_source(Source source);
};

/// Seconds of running since start.
double seconds_since(RunningClock::time_point start);

}  // namespace shoal
