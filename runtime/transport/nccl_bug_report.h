#pragma once
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/comm/device/nccl_known_bugs.h"
#include "runtime/transport/nccl_report.h"

namespace shoal {

/// A known bug of a version of NCCL, and what it means for Shoal's ranks.
struct NcclBugNotice {
  const NcclBug* bug = nullptr;
  std::vector<std::string> rungs;  ///< those on which ranks can meet it
};

/// The known bugs of this version (an NCCL_VERSION_CODE; 0 has none). Bugs that ranks can meet on
/// one of these rungs come first.
std::vector<NcclBugNotice> nccl_bug_notices(int version, const std::vector<NcclUse>& uses);

/// The known bugs of the library that was found; empty: none was looked for or found.
std::vector<NcclBugNotice> nccl_bug_notices(const std::vector<NcclUse>& uses);

/// A list of what docs/json.md describes as known_bugs.
Json to_json(const std::vector<NcclBugNotice>& notices);

/// Lines for people. Empty if there are no notices. settings: NAME=VALUE that the reader was told
/// to set; a bug that one of them avoids says so, and asks for no more.
std::string to_text(int version, const std::vector<NcclBugNotice>& notices,
                    const std::vector<std::string>& settings = {});

/// One line for the log for each bug that ranks on this rung can meet, with the version to move to.
std::vector<std::string> nccl_bug_warnings(const std::vector<NcclUse>& uses,
                                           const std::string& rung);

/// Why ranks do not use this version, for the log; empty: they use it.
std::string why_nccl_is_refused(int version, const std::string& library);

}  // namespace shoal
