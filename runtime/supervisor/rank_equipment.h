#pragma once
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/transport/nccl_report.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// What the ranks of a rung get besides its memory: environment variables, and for NCCL's rungs the
/// memory that NCCL's log goes into, which is read afterwards. Not thread-safe.
class RankEquipment {
 public:
  /// Fills in setup->environment and setup->logs. use: the entry of the rung in the report; nullptr
  /// if it is none of NCCL's. Without memory for the log the rung works too: use->logged is false
  /// then.
  void equip(const Rung& rung, const RungContext& context, NcclUse* use, TransportSetup* setup);

  /// Keeps the logs of ranks that were started with this setup.
  void keep_logs(TransportSetup* setup) { logs_ = std::move(setup->logs); }

  /// Takes over what the ranks have logged so far, and what those that live hold of /dev/shm. Not
  /// ok: NCCL does not connect as the rung says (check_nccl_use). ok if use is nullptr.
  Status compare(NcclUse* use, const std::vector<pid_t>& living) const;

  /// Removes the files in `directory` that a failed NCCL has left and that nobody holds open. They
  /// are named in its log and in `failed`. Does nothing if use is nullptr.
  void remove_left(const NcclUse* use, const std::string& directory, const Status& failed) const;

 private:
  std::vector<Fd> logs_;  // of the ranks that were started last
};

}  // namespace shoal
