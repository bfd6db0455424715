#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/control/channel.h"
#include "runtime/control/messages.h"
#include "runtime/supervisor/phase_clock.h"
#include "runtime/supervisor/spawn.h"
#include "runtime/transport/group_waits.h"

namespace shoal {

/// What a process has made of the processor since the last look at it.
enum class ProcessorUse {
  kNone,     ///< it sleeps, is held up, or is gone
  kSome,     ///< it has run
  kStarves,  ///< it would have run, and got no processor
};

/// One rank as the front knows it: its process, its control channel, and what it has said so far.
struct RankProcess {
  RankProcess(WorkerProcess p, Channel c) : process(std::move(p)), channel(std::move(c)) {}

  WorkerProcess process;
  Channel channel;
  bool channel_open = true;
  bool reaped = false;
  bool dumps = false;  ///< it was seen to write a core file: it is dead, and its end is to come
  bool left_behind = false;            ///< it was killed and did not end: nobody waits for it again
  int exit_code = 0, exit_status = 0;  ///< of its ProcessEnd, once reaped
  std::optional<RankFailure> failure;  ///< as it has reported it
  std::optional<Ready> ready;
  std::optional<TransportVerified> verified;
  std::optional<std::string> part;  ///< its part of an exchange that is not complete yet
  Phase phase = Phase::kSpawn;      ///< kIdle once it has started
  bool compiles = false;            ///< PhaseBegun::compiles
  PhaseClock phases{Phase::kSpawn};
  RunningClock::time_point heard_at = RunningClock::now();
  LoadProgress progress;
  double collective_s = 0;  ///< in collectives of steps, as it has reported it
  RankWaits step_waits;     ///< likewise; no steps if it cannot tell

  // In a step. The first two are as the rank has reported them.
  uint64_t parts = 0;  ///< of its work that it has completed since it was born
  bool waits = false;  ///< it has waited for other ranks or for a device for a while
  /// What it had used of the processor at the last look, and at StepWatch's first one, in all.
  std::chrono::nanoseconds cpu_seen{0}, cpu_at_first_look{0};

  /// To be called when the rank has reported that it enters this phase. kIdle means that it has
  /// reported the end of its start.
  void enter(Phase next) {
    phase = next;
    if (next == Phase::kIdle) {
      phases.leave();
    } else {
      phases.enter(next);
    }
  }

  /// True if it has completed another part of its step since it last said so.
  bool take(const StepProgress& progress_of_step) {
    waits = progress_of_step.waits;
    return std::exchange(parts, progress_of_step.parts) < progress_of_step.parts;
  }

  void add(const StepTimes& times) {
    collective_s += times.collective_seconds;
    if (times.waited_seconds)
      step_waits.add(times.steps, times.seconds, *times.waited_seconds,
                     times.waited_for_previous_seconds);
  }

  /// Reaps the process. False: it has not ended by the deadline, or was reaped before.
  bool reap(Deadline deadline = Deadline::after_ms(0));

  bool dead() const { return reaped || dumps; }

  /// True if no descriptor reports its end, so that somebody has to look for it.
  bool unwatched() const { return !reaped && !process.pidfd.valid(); }

  /// Its state in /proc: 'R', 'S', 'D', 'T' ...; '?' if it cannot be read or the process is gone.
  char state() const;

  /// What keeps it from running and is no fault of ours, as "is stopped by a signal"; empty:
  /// nothing that can be seen. It will not answer then.
  std::string held_up() const;

  /// Looks again how much processor time the rank has used. Call it so rarely that a process which
  /// runs uses at least a millisecond between two looks.
  ProcessorUse look_at_processor();

  /// True if it moves bytes to its peers and does nothing else.
  bool in_transport_phase() const { return phase == Phase::kOpen || phase == Phase::kSelfTest; }

  /// True if its peers may wait for its bytes. A rank that is being started, loads or takes memory
  /// does so alone.
  bool moves_bytes() const { return shoal::moves_bytes(phase); }
};

/// How many milliseconds a poll for the ranks' messages and ends may take: until the deadline, or
/// 10 ms if the end of a rank can only be found by looking.
int poll_ms(const std::vector<RankProcess>& ranks, Deadline deadline);

/// Looks for ranks that are writing a core file, gives them 2 s to end, and then kills those that
/// have not ended. Returns whether there was such a rank. If there is none, it returns at once.
bool end_dumps(std::vector<RankProcess>& ranks);

/// How long the slowest rank was in each phase.
PhaseSeconds slowest_phases(const std::vector<RankProcess>& ranks);

/// RankProcess::collective_s, by rank.
std::vector<double> collective_seconds(const std::vector<RankProcess>& ranks);

/// Who waits for whom, from RankProcess::step_waits.
std::optional<GroupWaits> group_waits(const std::vector<RankProcess>& ranks);

/// The processes of those ranks that have not been reaped.
std::vector<pid_t> pids_of_living(const std::vector<RankProcess>& ranks);

/// Kills and reaps the ranks that are left, within 2 s for all (kDeathMs), or 30 s while a rank
/// still gives its memory back. A process that hangs in the kernel is named in a warning and left
/// behind, of which the caller is told.
void end_ranks(std::vector<RankProcess>& ranks,
               const std::function<void(int rank, pid_t process)>& on_left_behind);

}  // namespace shoal
