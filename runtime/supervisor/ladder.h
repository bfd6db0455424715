#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/supervisor/worker_group.h"
#include "runtime/transport/report.h"

namespace shoal {

/// What the user allows.
struct LadderOptions {
  std::vector<std::string> order;       ///< rungs, the best first
  bool degrade_on_shm_shortage = true;  ///< false: a rung refused for shared memory ends the start
  std::string min_transport;  ///< the last rung of the order that may be used; empty: the last
  BudgetOptions budget;
  bool reproducible = true;  ///< sums in our own order: on devices it decides what NCCL connects
  NcclUserSettings nccl;     ///< what the user has set for NCCL
};

/// The one loop that finds a transport: takes the rungs in order, for the whole group, until one is
/// reserved, opened and proven. What speaks against a rung is kept as a Refusal. Not thread-safe;
/// the groups it starts belong to the calling thread (WorkerGroup).
class Ladder {
 public:
  Ladder(LadderOptions options, HostFacts facts, int world_size);

  /// Starts a group on the current rung, or the next that works, all within
  /// options.startup_timeout_s. From the second start on by the memory and the /dev/shm of that
  /// moment. UNAVAILABLE: no rung is left, every refusal named; the same where the policy or the
  /// time forbids to go on. What no other rung would cure (a broken model, a kill from outside)
  /// comes back as it is, with *failure filled in, and the rung stays.
  Result<std::unique_ptr<WorkerGroup>> start(WorkerGroupOptions options, GroupFailure* failure);

  /// The current rung has failed while it was in use: the next start() begins behind it, or on it
  /// where it is the last that may be used. UNAVAILABLE: the policy forbids to go on.
  Status refuse_current(const std::string& phase, const Status& why);

  const TransportReport& report() const { return report_; }
  void add_restart(std::string why) { report_.restarts.push_back(std::move(why)); }

 private:
  void look_again();
  Result<std::unique_ptr<WorkerGroup>> start_over(TransportSetup setup, WorkerGroupOptions options,
                                                  GroupFailure* failure);
  Status consider(const Rung& rung, const ShmNeed& need, TransportSetup* setup, std::string* phase);
  Status refuse(const ShmNeed& need, const std::string& phase, const Status& why);
  Status no_rung_left(const char* why);
  void find_remedies();
  NcclUse* nccl_use();
  std::vector<Fd> make_logs();
  void equip(const Rung& rung, TransportSetup* setup);
  Status look_at_logs();
  void remove_left_segments(const Status& failed) const;

  const LadderOptions options_;
  RungContext context_;
  TransportReport report_;
  std::vector<Fd> logs_;  // of the ranks that were started last
  size_t at_ = 0;         // in the order
  int32_t starts_ = 0;
};

}  // namespace shoal
