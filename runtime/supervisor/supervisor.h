#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/failure.h"
#include "runtime/supervisor/device_holders.h"
#include "runtime/supervisor/ladder.h"
#include "runtime/supervisor/living_thread.h"
#include "runtime/supervisor/restart_policy.h"
#include "runtime/supervisor/worker_group.h"

namespace shoal {

/// The number of a restart, and the number of restarts that are granted.
struct RestartCount {
  int restarts = 0;
  int max_restarts = 0;
  bool counts = true;  ///< it is one of them; a kill from outside may cost none (RestartPolicy)
};

/// What a caller may want to show. Each may be empty. They are called from the thread that the
/// ranks belong to. A hook must not call the Supervisor.
struct SupervisorHooks {
  /// The progress of all ranks, summed, while they load.
  std::function<void(const LoadProgress&)> on_progress;
  /// StartControl::on_phase_now.
  std::function<void(Phase, double seconds)> on_phase_now;
  /// A start, the first one or a later one, has come to its end, whether it succeeded or not.
  std::function<void()> on_start_over;
  /// Asked before lost ranks are started again. An error means that a new start would not continue
  /// what the lost ranks did; it ends the supervision, as a failure of its own fault. If it has to
  /// wait for the answer, then as the start does: until its deadline, or until it is given up.
  std::function<Status(const StartControl& start)> may_restart;
  /// Asked before the first step of ranks that were started again, with what each rank's work
  /// reports about itself, by rank. An error means the same, and a wait has the same end.
  std::function<Status(const std::vector<std::string>& ready, const StartControl& start)>
      may_continue;
  /// The ranks were lost and are started again.
  std::function<void(const Failure& why, const RestartCount& count)> on_restart;
  std::function<void(const std::string& rung, double seconds)> on_restarted;
  /// The ranks cannot be started again yet, because something has run out that was there before.
  /// The next try is in `seconds`.
  std::function<void(const Failure& why, double seconds)> on_shortage;
};

struct SupervisorOptions {
  LadderOptions ladder;
  WorkerGroupOptions group;
  /// The first start ends by then, if that is less than group.startup_timeout_s from its beginning.
  Deadline start_by = Deadline::infinite();
  int max_restarts = 0;  ///< how often lost ranks are started again; 0: their loss is the end
  /// How long step() waits for a restart before it returns, so that its caller can do other things.
  double answer_s = 0.1;
  SupervisorHooks hooks;
};

/// The outcome of a step that did not end the server. Without a result the ranks were lost; they
/// run again, or are still being started again. Nothing that they held is left, so that every
/// sequence has to be computed again from its tokens.
struct GroupStep {
  std::optional<std::string> result = {};  ///< what rank 0 answers
  Status lost = {};                        ///< why there is no result
  /// A request of this step may be the cause: the ranks were lost in this very step and not before
  /// it, and nothing outside kept them from running.
  bool blames_requests = false;
  bool begun = false;  ///< the step had begun on the ranks that were lost
};

/// The ranks of one group: started over the first transport that works, watched, and started again
/// when they are lost. It holds the ladder, the group and the restart policy, knows no flags and
/// prints nothing. step(), watch(), give_up(), lost(), restarting_s(), why_restarting(), report(),
/// start_phases() and collective_seconds() may be called from any thread.
///
/// A restart runs on the thread that the ranks belong to. It must come to its end within
/// group.startup_timeout_s. If it meets a shortage (descriptors, processes, memory, /dev/shm), it
/// looks again after 0.1 s, then after twice as long each time, up to 2 s. So it waits for a device
/// too: until the process of the rank that had it is gone, and the device and its memory are there
/// again. Only a start that fails for another reason is counted as one of max_restarts, and a kill
/// from outside only if the ranks had done little since the restart before (RestartPolicy).
class Supervisor {
 public:
  /// Starts the ranks, with as many attempts as restarts are granted, all of them within
  /// group.startup_timeout_s. `facts` must have been gathered before the first thread was started.
  /// Fault::kPolicy (UNAVAILABLE): no transport is left. A failure that neither another transport
  /// nor a restart would cure comes back as it is. `report`, if given, is then what report() would
  /// be.
  static Attempt<std::unique_ptr<Supervisor>> start(SupervisorOptions options, HostFacts facts,
                                                    TransportReport* report = nullptr);
  ~Supervisor();

  /// Runs one step on every rank (RankWork::step). Ranks that are lost in it are started again, for
  /// which it waits answer_s at most. While they are being started, it runs nothing. A Failure:
  /// they are lost for good.
  Attempt<GroupStep> step(uint64_t number, std::string plan);

  /// Sets what ranks that are started again get as RankStart::work. Call it before the first step()
  /// or watch().
  void set_work(std::string work) { options_.group.start.work = std::move(work); }

  /// Looks for a rank that has died while nothing ran, and begins to start the group again. Waits
  /// only for the end of one that has died. A Failure: the ranks are lost for good, which it
  /// returns at once even while step() runs.
  std::optional<Failure> watch();

  /// For how many seconds lost ranks have been on their way back; 0: they run, or are lost for
  /// good.
  double restarting_s() const;
  /// Why they were lost. ok: they run, or are lost for good.
  Status why_restarting() const;

  /// From now on lost ranks are not started again, a start that is under way ends with
  /// Fault::kGivenUp, and so do a step and its ranks if the step does not end within a second.
  void give_up() { given_up_ = true; }

  /// Why the ranks are lost for good; nullopt as long as they are not. From then on step() and
  /// watch() return the same, because a loss that nobody may repair must not be repaired by the
  /// next call.
  std::optional<Failure> lost() const;

  TransportReport report() const;
  /// How long the last start that succeeded was in each of its phases.
  PhaseSeconds start_phases() const;
  /// How long each rank has been in collectives of steps, in seconds, by rank and over all
  /// restarts. A rank reports this once a second while there are steps.
  std::vector<double> collective_seconds() const;
  /// What each rank's work reports about itself, by rank. Must not be called while step() or
  /// watch() runs on another thread, or after a rank was lost.
  const std::vector<std::string>& ready() const { return group_->ready(); }
  /// The processes, by rank; for tests. Must not be called while step() or watch() runs on another
  /// thread, or during a restart.
  std::vector<int> pids() const { return group_->pids(); }

 private:
  class Pause;
  Supervisor(SupervisorOptions options, HostFacts facts);
  std::optional<Failure> try_start(const StartControl& control);
  void begin_restart(const Failure& failure);
  std::optional<GroupStep> await_restart();
  std::optional<Failure> refuse_start(const Failure& failure, const StartControl& control,
                                      const Pause& pause);
  std::optional<Failure> refuse_restart(const Failure& failure, const StartControl& control,
                                        const Pause& pause);
  std::optional<Failure> refuse_other_work(const StartControl& control);
  std::optional<Failure> recover(const Failure& first, const StartControl& control);
  std::optional<Failure> wait_out(const Failure& shortage, const StartControl& control,
                                  Pause* pause);
  StartControl new_control();
  void publish_report();
  void note_step_times();

  SupervisorOptions options_;
  std::mutex mutex_;                // one step or watch at a time; guards lost_while_idle_
  mutable std::mutex state_mutex_;  // guards the next eight members
  std::condition_variable restarted_;
  std::optional<Failure> lost_;
  std::optional<RunningClock::time_point> restarting_since_;
  Status why_restarting_;
  PhaseSeconds start_phases_;
  std::vector<double> collective_s_, collective_s_before_;  // of all groups, and without this one
  // A snapshot of the ladder's with the waits of the group, for others to read while a restart
  // runs.
  TransportReport report_;
  // While a restart runs, only the ranks' thread uses these five and group_. Otherwise mutex_
  // guards them.
  Ladder ladder_;
  RestartPolicy policy_;
  DeviceHolders holders_;
  ChannelStock channels_;   // for the next group
  int64_t good_steps_ = 0;  // of the group; a failure of it takes them
  const Clock::time_point origin_ = Clock::now();
  std::atomic<bool> given_up_ = false;
  bool lost_while_idle_ = false;  // the next plan relies on what is gone
  std::unique_ptr<WorkerGroup> group_;
  LivingThread ranks_thread_;  // ranks die with the thread that started them
};

}  // namespace shoal
