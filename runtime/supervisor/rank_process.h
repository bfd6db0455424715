#pragma once
#include <optional>
#include <string>
#include <utility>

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
  int exit_code = 0, exit_status = 0;    ///< waitid's si_code and si_status, once reaped
  std::optional<WorkerFailure> failure;  ///< its own words
  std::optional<WorkerReady> ready;
  std::optional<TransportVerified> verified;
  std::optional<std::string> part;  ///< for the exchange
  WorkerPhase phase = WorkerPhase::kSpawn;
  Clock::time_point heard_at = Clock::now();
  LoadProgress progress;

  /// Takes the process's end from the kernel; false where it has not ended (options: WNOHANG) or was taken before.
  bool reap(int options);

  /// 'R', 'S', 'D', 'T' ... of /proc; '?' where it cannot be read or the process is gone.
  char state() const;

  /// By a signal (or a debugger): it will not answer, and it is nobody's fault here.
  bool stopped() const { return state() == 'T' || state() == 't'; }

  /// It moves bytes to its peers and does nothing else.
  bool in_transport_phase() const { return phase == WorkerPhase::kOpen || phase == WorkerPhase::kSelfTest; }
};

}  // namespace shoal
