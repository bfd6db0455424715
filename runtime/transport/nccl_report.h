#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/comm/device/nccl_known_bugs.h"
#include "runtime/transport/rungs/rung_context.h"

namespace shoal {

/// One of NCCL's rungs: what was planned, and once it was tried what the logs of its ranks report.
struct NcclUse {
  std::string rung;
  std::string version;  ///< "2.28.9": of the log or the library, otherwise the one that was assumed
  std::string library;  ///< the file; empty: no library was loaded
  int library_version = 0;  ///< its NCCL_VERSION_CODE; 0: none was loaded
  /// The conditions that are true for ranks on this rung. A known bug can affect these ranks only
  /// if its condition is among them.
  std::vector<NcclBugCondition> conditions;
  std::vector<SettingOutcome> settings;  ///< what the rung wants, and what is in force
  std::vector<NcclUserSetting> user;     ///< all that the user has set
  int64_t predicted_bytes = 0;           ///< of /dev/shm, in whole pages, for one communicator
  int predicted_channels = 0;            ///< 0: NCCL chooses, and no shared memory depends on it
  Bound bound = Bound::kExact;           ///< how the prediction stands to what will be taken
  std::vector<std::string> assumptions;  ///< why it is not exact; empty: it is
  /// Ranks were started on it. The fields below, except `logged` and `used_bytes`, come from their
  /// logs.
  bool tried = false;
  bool logged = false;  ///< false: the user keeps the logs, or there was no memory for them
  std::map<std::string, int> transports;  ///< connections of all ranks by kind: {"SHM/direct": 4}
  int channels = 0;
  /// Bytes of /dev/shm that its ranks hold, in whole pages. Before they run: what their logs say.
  /// nullopt: nobody has seen it, because the ranks have not run and no log of ours names bytes.
  std::optional<int64_t> used_bytes;
  bool cumem_fallback = false;  ///< cuMem host memory was asked for and did not work
  std::string last_error;       ///< the last warning of the first rank that has one: "[rank 1] ..."
};

/// rung must be one of NCCL's.
NcclUse plan_nccl_use(const std::string& rung, const RungContext& context);

/// Adds to *use what NCCL has logged. logs: one text per rank, which holds what the rank has logged
/// so far.
void add_nccl_logs(const std::vector<std::string>& logs, NcclUse* use);

/// Records that the ranks were seen to hold this many bytes of /dev/shm. use->used_bytes keeps the
/// largest number that was seen.
void see_nccl_bytes(int64_t bytes, NcclUse* use);

/// FAILED_PRECONDITION: NCCL does not connect as the rung says ("P2P" for nccl-p2p), so that its
/// need was not the one that was checked. ok if nothing was logged.
Status check_nccl_use(const NcclUse& use);

Json to_json(const NcclUse& use);
/// Some lines for people, indented by two spaces.
std::string to_text(const NcclUse& use);

}  // namespace shoal
