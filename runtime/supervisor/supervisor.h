#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/failure.h"
#include "runtime/supervisor/ladder.h"
#include "runtime/supervisor/living_thread.h"
#include "runtime/supervisor/restart_policy.h"

namespace shoal {

/// What a caller may want to show. Each may be empty. They are called from the thread that starts,
/// steps or watches, except on_progress, which is called from the thread that the ranks belong to.
/// A hook must not call the Supervisor.
struct SupervisorHooks {
  /// The progress of all ranks, summed, while they load.
  std::function<void(const LoadProgress&)> on_progress;
  /// A start, the first one or a later one, has come to its end, whether it succeeded or not.
  std::function<void()> on_start_over;
  /// Asked before lost ranks are started again. An error means that a new start would not continue
  /// what the lost ranks did; it ends the supervision, as a failure of Fault::kOwn.
  std::function<Status()> may_restart;
  /// The ranks were lost and are started again, for the restart-th time of max_restarts.
  std::function<void(const Failure& why, int restart, int max_restarts)> on_restart;
  std::function<void(const std::string& rung, double seconds)> on_restarted;
};

struct SupervisorOptions {
  LadderOptions ladder;
  WorkerGroupOptions group;
  int max_restarts = 0;  ///< how often lost ranks are started again; 0: their loss is the end
  SupervisorHooks hooks;
};

/// The outcome of a step that did not end the server. Without a result the ranks were lost and run
/// again. Nothing that they held is left, so that every sequence has to be computed again from its
/// tokens.
struct GroupStep {
  std::optional<std::string> result;  ///< what rank 0 answers
  Status lost;                        ///< why there is no result
  /// A request of this step may be the cause: the ranks were lost in this very step and not before
  /// it, and nothing outside kept them from running.
  bool blames_requests = false;
};

/// The ranks of one group: started over the first transport that works, watched, and started again
/// when they are lost. It holds the ladder, the group and the restart policy, knows no flags and
/// prints nothing. step(), watch(), give_up() and report() may be called from any thread.
class Supervisor {
 public:
  /// Starts the ranks, with as many attempts as restarts are granted, all of them within
  /// group.startup_timeout_s. `facts` must have been gathered before the first thread was started.
  /// Fault::kPolicy (UNAVAILABLE): no transport is left. A failure that neither another transport
  /// nor a restart would cure comes back as it is.
  static Attempt<std::unique_ptr<Supervisor>> start(SupervisorOptions options, HostFacts facts);
  ~Supervisor();

  /// Runs one step on every rank (RankWork::step). Ranks that are lost in it are started again. A
  /// Failure: they are lost for good.
  Attempt<GroupStep> step(uint64_t number, std::string plan);

  /// Looks for a rank that has died while nothing ran, and starts the group again. Returns at once
  /// if all is well or if a step runs, because the step will see it. `given_up` is asked several
  /// times a second in such a start, and true ends it. A Failure: the ranks are lost for good.
  std::optional<Failure> watch(const std::function<bool()>& given_up);

  /// From now on lost ranks are not started again, and a start that is under way ends with
  /// Fault::kGivenUp.
  void give_up() { given_up_ = true; }

  /// Why the ranks are lost for good; nullopt as long as they are not. From then on step() and
  /// watch() return the same, because a loss that nobody may repair must not be repaired by the
  /// next call.
  std::optional<Failure> lost() const;

  TransportReport report() const;
  /// What each rank's work reports about itself, by rank. Must not be called while step() or
  /// watch() runs on another thread.
  const std::vector<std::string>& ready() const { return group_->ready(); }
  /// The processes, by rank; for tests. Must not be called while step() or watch() runs on another
  /// thread.
  std::vector<int> pids() const { return group_->pids(); }

 private:
  using GivenUp = std::function<bool()>;
  Supervisor(SupervisorOptions options, HostFacts facts);
  Deadline start_deadline() const { return Deadline::after_s(options_.group.startup_timeout_s); }
  std::optional<Failure> try_start(const StartControl& control);
  std::optional<Failure> lose(std::optional<Failure> final);
  std::optional<Failure> refuse_restart(const Failure& failure, const StartControl& control);
  std::optional<Failure> recover(const Failure& first, const StartControl& control);
  StartControl control_until(Deadline deadline, const GivenUp& given_up = {}) const;
  void publish_report();

  const SupervisorOptions options_;
  std::mutex mutex_;                 // guards group_, ladder_, policy_ and lost_while_idle_
  mutable std::mutex report_mutex_;  // guards report_ and lost_
  std::optional<Failure> lost_;
  TransportReport report_;  // a snapshot of the ladder's, for others to read while a restart runs
  Ladder ladder_;
  RestartPolicy policy_;
  const Clock::time_point origin_ = Clock::now();
  std::atomic<bool> given_up_ = false;
  bool lost_while_idle_ = false;  // the next plan relies on what is gone
  LivingThread spawner_;          // ranks die with the thread that started them
  std::unique_ptr<WorkerGroup> group_;
};

}  // namespace shoal
