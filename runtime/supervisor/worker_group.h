#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/control/messages.h"
#include "runtime/supervisor/group_failure.h"
#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/group_waits.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {

struct WorkerGroupOptions {
  /// What every rank is sent. Rank, log and transport are filled in for each rank. `cpus` holds
  /// those of all ranks, one rank after the other, and each rank is given its part.
  RankStart start;
  /// Descriptors that every rank inherits for its work, under the same numbers, each of them at
  /// least kFirstWorkFd (runtime/control/descriptors.h). The caller keeps them open.
  std::vector<int> work_fds;
  int world_size = 1;
  /// Spawn, open, self-test and warm-up may each take a quarter of it, but not more than 15 s (60 s
  /// on devices). Most of the time in which a rank gets no processor does not count (StartWatch).
  double startup_timeout_s = 600;
  /// A step has hung if no rank completes another part of its work (RankContext::moved) for this
  /// long.
  double step_timeout_s = 10;
  /// A rank often reports its peer's death before the kernel does. The group waits this long for
  /// the death itself before it takes that rank's word.
  int64_t evidence_ms = 1'000;
  /// How long ranks that can answer may take to say for whom they wait, once nothing has moved for
  /// too long. They look up every 100 ms.
  int64_t explain_ms = 400;
  /// Where the kernel's counts of its out-of-memory killer are read.
  SystemPaths system;
};

/// Pairs of connected ends, of which the second is for a rank. Made ahead of time, because a
/// server's clients may have taken every descriptor when a group must be started again.
using ChannelStock = std::vector<std::pair<Fd, Fd>>;

/// How a caller follows a start, limits it and ends it. All of it may be left out.
struct StartControl {
  Deadline deadline = Deadline::infinite();
  /// Asked several times a second: true ends the start (Fault::kGivenUp).
  std::function<bool()> given_up;
  /// Asked by the ladder before each rung: a failure says who still holds what the ranks would
  /// need, and ends the start.
  std::function<std::optional<Failure>()> held = [] { return std::optional<Failure>(); };
  /// Gets the summed progress of all ranks while they load.
  std::function<void(const LoadProgress&)> on_progress;
  /// Gets each phase of the start, from kSpawn on, once every rank has left it, with the seconds
  /// that the slowest rank was in it.
  std::function<void(Phase, double seconds)> on_phase_done;
  /// Gets, several times a second, the phase that not every rank has left, and for how many seconds
  /// that has been so.
  std::function<void(Phase, double seconds)> on_phase_now;
  /// Gets the figures of rank 0's self-test, once the transport has passed it on every rank.
  std::function<void(const TransportVerified&)> on_verified;
  /// Called once for a rank that hangs in the kernel when its group has ended. Nobody reaps its
  /// process but the caller. Then or later: the group keeps a copy.
  std::function<void(int rank, pid_t process)> on_left_behind;
  ChannelStock* channels = nullptr;  ///< the ranks' channels are taken from here first
};

/// The processes of one tensor-parallel group. They are started by posix_spawn of this program from
/// the calling thread, which must live as long as the group, because the kernel kills them when
/// that thread ends (PR_SET_PDEATHSIG). A worker that dies ends the group: the others are killed
/// and reaped, and the status names the first failing rank with its own reason. If a deadline
/// passes, the status says who waits for whom, with the phase, the collective and its number for
/// each rank.
class WorkerGroup {
 public:
  /// Spawns the ranks over the transport that `setup` holds (rung kNoTransport for one rank), opens
  /// and proves it, and loads. The setup may be destroyed afterwards. ABORTED: a rank died (its
  /// number and the signal or exit code are named). If a rank gave a status of its own, that
  /// status, with because ... [rank N]. DEADLINE_EXCEEDED names the phase and who is late.
  /// CANCELLED: given_up has ended the start.
  static Attempt<std::unique_ptr<WorkerGroup>> start(const WorkerGroupOptions& options,
                                                     const TransportSetup& setup,
                                                     const StartControl& control = {});
  ~WorkerGroup();  ///< shuts down: asks, waits briefly, kills and reaps

  /// Runs one step on every rank (RankWork::step) and returns what rank 0 answers. After a failure
  /// the group has ended, and every later call fails the same way; only an answer to another step
  /// (Fault::kOwn, Phase::kIdle) leaves it running. given_up is asked several times a second: from
  /// when it is true, the step has a second left (CANCELLED, Fault::kGivenUp).
  Attempt<std::string> step(uint64_t number, std::string plan,
                            const std::function<bool()>& given_up = {});

  /// The failure of a worker that has died while idle, or nullopt. Waits up to the deadline for
  /// one.
  std::optional<Failure> watch(Deadline deadline);

  /// True if the group has ended, so that another one must be started.
  bool ended() const;
  /// What each rank's work reports about itself (RankWork::begin), by rank; empty with
  /// start.transport_only.
  const std::vector<std::string>& ready() const;
  /// How long the slowest rank was in each phase of the start, from kSpawn on.
  PhaseSeconds start_phases() const;
  /// How long each rank has been in collectives of steps, in seconds, by rank. What a rank has not
  /// reported yet, which may be of its last second of work, is missing.
  std::vector<double> collective_seconds() const;
  /// Who waits for whom in its steps, as far as the ranks have reported it.
  std::optional<GroupWaits> waits() const;
  /// The figures of rank 0's self-test.
  const TransportVerified& verified() const;
  std::vector<int> pids() const;

 private:
  struct Impl;
  explicit WorkerGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
