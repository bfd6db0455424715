#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervisor/kept_pool.h"
#include "runtime/supervisor/phase_clock.h"
#include "runtime/supervisor/rank_equipment.h"
#include "runtime/supervisor/worker_group.h"
#include "runtime/transport/remedy.h"
#include "runtime/transport/report.h"

namespace shoal {

/// How messages name the settings that keep a start from going on. The program fills in its flags.
struct LimitNames {
  std::string shm_shortage = "on_shm_shortage=fail";
  std::string min_transport = "min_transport";
  std::string startup_timeout = "startup_timeout";
  std::string max_restarts = "max_restarts";
  std::string work = "the model";  ///< what the ranks take their memory for
  /// Ends the error of a start for which no transport is left, if a remedy is known.
  std::string remedy_hint = "the report has a remedy to paste";
  /// The command that a remedy names if files of killed runs fill /dev/shm.
  std::string clean_stale = kCleanStale;
};

/// What the user allows.
struct LadderOptions {
  std::vector<std::string> order;       ///< rungs, the best first
  std::string order_by;                 ///< the setting that leaves rungs out of it; empty: none
  std::vector<std::string> left_out;    ///< those of them that the policy would allow, best first
  bool degrade_on_shm_shortage = true;  ///< false: a rung refused for shared memory ends the start
  /// The last rung of the order that may be used; empty: all may be used.
  std::string min_transport;
  BudgetOptions budget;
  bool reproducible = true;  ///< sums in our own order; on devices this decides what NCCL connects
  NcclUserSettings nccl;     ///< what the user has set for NCCL
  LimitNames names;
  /// Gets every refusal before the next rung is tried, and the name of that rung. as_good: the next
  /// rung is as good as the refused one, so nothing is lost if it works
  /// (runtime/transport/rungs/rung.h). If it does not, the refusal comes again, without as_good.
  /// In a restart it comes only once the start has ended.
  std::function<void(const Refusal&, const std::string& next, bool as_good)> on_refused;
  /// Gets each phase of a start when its last rank has left it, with the seconds that the slowest
  /// rank was in it, and the rung. kProbe covers all that the front does before it starts
  /// ranks.
  std::function<void(Phase, double seconds, const std::string& rung)> on_phase;
  /// Gets the report as soon as a transport is proven, which is before weights are loaded.
  std::function<void(const TransportReport&)> on_verified;
};

/// The one loop that finds a transport. It takes the rungs in order, for the whole group, until one
/// is reserved, opened and proven. Each rejected rung is recorded as a Refusal with its reason. Not
/// thread-safe; the groups it starts belong to the calling thread (WorkerGroup).
///
/// It keeps the pool of the rung that is in use, so that nobody else can take it before a restart.
/// The pool goes to the next group once every rank of the last one has ended, and is given back
/// when its rung is left.
class Ladder {
 public:
  Ladder(LadderOptions options, HostFacts facts, int world_size);

  /// Starts a group on the current rung, or on the next one that works, before
  /// control.deadline and within options.startup_timeout_s.
  /// Every start but the first looks again at how much memory and /dev/shm is free. Fault::kPolicy
  /// (UNAVAILABLE) names every refusal: no rung is left, or policy or time forbid to go on. A
  /// failure that no other rung would cure, such as a broken model or a kill from outside, is
  /// returned unchanged, and the rung stays. So is what control.held says before a rung. Before the
  /// first rung, RESOURCE_EXHAUSTED says that the ranks by themselves do not fit the memory limit.
  ///
  /// Once a group has run, a resource may be short for a moment. The ladder leaves the rung for it
  /// only if another one starts now. If none does, the failure is Fault::kShortage with all
  /// reasons, the rung stays, and the refusals are forgotten. If ranks of another one fail for what
  /// no later try would cure, that is the failure.
  Attempt<std::unique_ptr<WorkerGroup>> start(WorkerGroupOptions options,
                                              const StartControl& control);

  /// The current rung has failed while it was in use. The next start() begins behind it, or on it
  /// again if it is the last that may be used. A Failure of Fault::kPolicy says that the policy
  /// forbids to go on.
  std::optional<Failure> refuse_current(const Failure& failure);

  /// A snapshot, with the facts that the last start went by.
  TransportReport report() const;
  /// How long the front itself was in kBudget, kProbe and kReserve during the last start. All rungs
  /// that were considered are in it.
  const PhaseSeconds& front_phases() const { return phases_.seconds(); }
  const std::string& rung() const { return report_.rung; }  ///< the one in use; empty: none
  /// The rung over which ranks were started last, even if that start failed. Empty: no ranks were
  /// started yet, or there is only one rank.
  const std::string& last_tried() const { return tried_; }
  /// A group has been started well.
  bool has_run() const { return has_run_; }
  void add_restart(std::string why) { report_.add_restart(std::move(why)); }

 private:
  void look_again();
  Attempt<std::unique_ptr<WorkerGroup>> start_over(TransportSetup setup, WorkerGroupOptions options,
                                                   const StartControl& control);
  Attempt<std::unique_ptr<WorkerGroup>> start_alone(WorkerGroupOptions options,
                                                    const StartControl& control);
  Attempt<std::unique_ptr<WorkerGroup>> climb_down(const WorkerGroupOptions& options,
                                                   const StartControl& control);
  Attempt<TransportSetup> consider(const Rung& rung, const ShmNeed& need);
  Attempt<TransportSetup> make_setup(const Rung& rung, const ShmNeed& need);
  BudgetOptions budget() const;
  std::optional<Failure> too_little_memory();
  Failure go_back(const Failure& failure, size_t first_refusal, const std::string& rung);
  std::optional<Failure> refuse(const Failure& failure);
  void say_refused(size_t end, const std::string& taken);
  void say_refused_in_vain(const Failure& failure, size_t first);
  void say_prepared() const;
  void say_phase(Phase phase, double seconds) const;
  void say_verified(const TransportVerified& figures);
  Failure forbid(const std::string& setting);
  Failure no_rung_left(std::string what);
  std::string none_works();
  void find_remedies();
  NcclUse* nccl_use();

  const LadderOptions options_;
  RungContext context_;     // owns the facts
  TransportReport report_;  // without the facts, which report() adds
  RankEquipment equipment_;
  size_t at_ = 0;      // an index into report_.order
  size_t said_ = 0;    // on_refused needs no refusal before this index any more
  std::string tried_;  // the rung over which ranks were started last
  int32_t starts_ = 0;
  bool has_run_ = false;
  /// What the ranks of the last group held that nobody else could use; 0: not known.
  int64_t used_bytes_ = 0;

  PhaseClock phases_;  // of the front, in this start
  KeptPool pool_;
};

}  // namespace shoal
