#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/control/channel.h"
#include "runtime/control/messages.h"
#include "runtime/supervisor/spawn.h"

namespace shoal {

/// One rank as the front knows it: its process, its control channel, and what it has said so far.
struct RankProcess {
  RankProcess(WorkerProcess p, Channel c) : process(std::move(p)), channel(std::move(c)) {}

  WorkerProcess process;
  Channel channel;
  bool channel_open = true;
  bool reaped = false;
  bool left_behind = false;            ///< it was killed and did not end: nobody waits for it again
  int exit_code = 0, exit_status = 0;  ///< of its ProcessEnd, once reaped
  std::optional<WorkerFailure> failure;  ///< its own words
  std::optional<WorkerReady> ready;
  std::optional<TransportVerified> verified;
  std::optional<std::string> part;  ///< for the exchange
  WorkerPhase phase = WorkerPhase::kSpawn;
  Clock::time_point heard_at = Clock::now();
  LoadProgress progress;

  /// Takes the process's end from the kernel; false where it has not ended by the deadline or was
  /// taken before.
  bool reap(Deadline deadline = Deadline::after_ms(0));

  /// 'R', 'S', 'D', 'T' ... of /proc; '?' where it cannot be read or the process is gone.
  char state() const;

  /// By a signal (or a debugger): it will not answer, and it is nobody's fault here.
  bool stopped() const { return state() == 'T' || state() == 't'; }

  /// It moves bytes to its peers and does nothing else.
  bool in_transport_phase() const {
    return phase == WorkerPhase::kOpen || phase == WorkerPhase::kSelfTest;
  }
};

/// Kills those that are left and takes their ends from the kernel, within some seconds for all: a
/// process that hangs in the kernel is named in a warning and left behind.
void end_ranks(std::vector<RankProcess>& ranks);

}  // namespace shoal
