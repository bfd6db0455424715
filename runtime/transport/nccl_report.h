#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/transport/rungs/rung_context.h"

namespace shoal {

/// One of NCCL's rungs: what was planned, and once it was tried what its ranks' logs say.
struct NcclUse {
  std::string rung;
  std::string version;  ///< "2.28.9": the library's, else the one that was asked about
  std::string library;  ///< the file; empty: none was loaded
  std::vector<SettingOutcome> settings;  ///< the rung's own, and who won
  std::vector<NcclUserSetting> user;     ///< all of the user's
  int64_t predicted_bytes = 0;           ///< of /dev/shm, in whole pages
  int predicted_channels = 0;            ///< 0: NCCL's choice, where no shared memory depends on it
  std::vector<std::string> assumptions;  ///< where the prediction is an upper bound
  bool tried = false;   ///< ranks were started on it; what follows is of their logs
  bool logged = false;  ///< false: the user keeps the logs, or nobody could
  std::map<std::string, int> transports;  ///< connections of all ranks by kind: {"SHM/direct": 4}
  int channels = 0;
  int64_t used_bytes = 0;       ///< of /dev/shm, in whole pages, as its ranks' logs say
  bool cumem_fallback = false;  ///< cuMem host memory was asked for and did not work
  std::string last_error;       ///< the last warning of the first rank that has one: "[rank 1] ..."
};

/// rung must be one of NCCL's.
NcclUse plan_nccl_use(const std::string& rung, const RungContext& context);

/// logs: one per rank, as far as they were written.
void add_nccl_logs(const std::vector<std::string>& logs, NcclUse* use);

/// FAILED_PRECONDITION: NCCL connects otherwise than the rung says ("P2P" for nccl-p2p): its need
/// was another one then. ok where nothing was logged.
Status check_nccl_use(const NcclUse& use);

Json to_json(const NcclUse& use);
/// Some lines, indented by two.
std::string to_text(const NcclUse& use);

}  // namespace shoal
