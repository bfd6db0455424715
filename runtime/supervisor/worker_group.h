#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/status.h"
#include "runtime/control/messages.h"
#include "runtime/supervisor/group_failure.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {

struct WorkerGroupOptions {
  WorkerInit init;  ///< rank, cpus and transport parts are filled in per rank
  int world_size = 1;
  /// All phases together; spawn, open and self-test: a quarter each, 15 s at most (60 s on
  /// devices).
  double startup_timeout_s = 600;
  /// Ends the start too: where several groups are tried in one start, they have startup_timeout_s
  /// together.
  Deadline start_deadline = Deadline::infinite();
  double step_timeout_s =
      10;  ///< a step in which no rank gets a layer further for so long has hung
  /// Looked at every half second of a start: true ends it with CANCELLED. Empty: never.
  std::function<bool()> given_up;
  /// Called with the summed progress of all ranks while they load.
  std::function<void(const LoadProgress&)> on_progress;
};

/// The processes of one tensor-parallel group. Started by posix_spawn of this program from the
/// calling thread, which must live as long as the group (PR_SET_PDEATHSIG follows it). A worker
/// that dies ends the group: the others are killed and reaped, and the status names the first
/// failing rank with its own reason. Where a deadline passes, the status says who waits for whom:
/// per rank the phase, the collective and its number.
class WorkerGroup {
 public:
  /// Spawns over the transport that `setup` holds (rung kNoTransport for one rank), opens and
  /// proves it, loads. The setup may go afterwards. ABORTED: a rank died (rank and signal or exit
  /// code named); a rank's own status (with because ... [rank N]) when it gave one;
  /// DEADLINE_EXCEEDED names the phase and who is late. *failure tells more.
  static Result<std::unique_ptr<WorkerGroup>> start(const WorkerGroupOptions& options,
                                                    const TransportSetup& setup,
                                                    GroupFailure* failure);
  ~WorkerGroup();  ///< shuts down: asks, waits briefly, kills, reaps

  /// Runs one step on every rank. On failure the group has been ended and every later call fails
  /// the same way.
  Result<StepResult> step(const StepPlan& plan);

  /// ABORTED with rank and signal as soon as a worker has died while idle; ok otherwise. Waits up
  /// to the deadline.
  Status watch(Deadline deadline);

  /// After step() or watch() has failed.
  const GroupFailure& failure() const;
  /// By rank; empty with init.transport_only.
  const std::vector<WorkerReady>& ready() const;
  /// Rank 0's figures.
  const TransportVerified& verified() const;
  std::vector<int> pids() const;

 private:
  struct Impl;
  explicit WorkerGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
