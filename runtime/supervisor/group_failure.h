#pragma once
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/supervisor/rank_process.h"
#include "runtime/supervisor/step_watch.h"

namespace shoal {

/// What the group is doing. Each rank has a phase of its own until all have started; then there is
/// one for all.
struct GroupPhase {
  bool starting = true;
  Phase phase = Phase::kSpawn;
  uint64_t step = 0;  ///< the number of the step, in Phase::kStep

  Phase of(const RankProcess& rank) const { return starting ? rank.phase : phase; }
  /// The failure happened in this phase of the group or of a rank.
  void note(Phase one, Failure* failure) const {
    failure->phase = one;
    failure->step = one == Phase::kStep ? step : 0;
  }
  /// The phase of a rank, or of the group, as messages name it: "load", "step 12".
  std::string text_of(Phase one) const;
};

/// Whether to wait a little longer before explain_failure(). The death of a rank that said nothing
/// explains everything, so it ends the wait. A rank that is stopped or frozen is not waited for. A
/// rank may also give a reason of its own, which is more than that another rank is gone or silent.
/// Then only that rank is waited for, until it has left. The others are waited for too while `late`
/// is false, because one of them may have died just now.
bool more_evidence_may_come(const std::vector<RankProcess>& ranks, bool late);

/// Finds out which rank failed first and why, after a rank has ended or has reported that it
/// failed. A rank that died without a reason counts first, then a rank with a reason of its own,
/// and only then a rank that merely lost a peer. out_of_memory: the kernel's out-of-memory killer
/// may have sent a SIGKILL.
Failure explain_failure(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                        bool out_of_memory);

/// Finds out who waits for whom after nothing has moved for this many seconds. Call it once the
/// ranks have had the time to report where they are. The rank to blame is one that is stopped or
/// frozen (Fault::kHeldUp). If there is none, it is the first that waits for nobody. A rank waits
/// for nobody while its device computes by itself. While its device sums, it waits for the ranks
/// that are not as far.
Failure explain_silence(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                        double seconds);

/// The same after a rank has computed for too long: the verdict names it. It has spun
/// (Fault::kSpinning), or it got too little of the processor (Fault::kHeldUp).
Failure explain_overrun(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                        const StepVerdict& verdict);

}  // namespace shoal
