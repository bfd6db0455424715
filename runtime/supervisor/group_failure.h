#pragma once
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/supervisor/rank_process.h"

namespace shoal {

/// How a group came to its end, for who decides what comes next.
struct GroupFailure {
  Status status;
  int rank = -1;         ///< that failed first, or that the others wait for; -1: cannot be told
  std::string phase;     ///< "spawn", "open", "self-test", "load", "step 12", "idle"
  bool outside = false;  ///< a signal from outside killed or stopped the rank: nobody's fault here
  bool moving = false;  ///< failed while bytes were moved between ranks: another transport may work
};

/// What the group was doing: a phase of each rank's own until all have started, then one for all.
struct GroupPhase {
  bool starting = true;
  std::string name = "spawn";

  std::string of(const RankProcess& rank) const { return starting ? phase_name(rank.phase) : name; }
};

/// A rank has ended or has said that it failed: who was first, and why. A death without a word
/// counts before a reason of one's own, and that before "a peer is gone".
GroupFailure explain_failure(const std::vector<RankProcess>& ranks, const GroupPhase& phase);

/// Nothing has moved for so many seconds, and the ranks that could have said where they stand: who
/// waits for whom. The root is the rank that waits for nobody; a stopped one before all.
GroupFailure explain_silence(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                             double seconds);

}  // namespace shoal
