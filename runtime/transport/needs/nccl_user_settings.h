#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// A variable of NCCL's that the user has set.
struct NcclUserSetting {
  std::string name;  ///< "NCCL_P2P_DISABLE"
  std::string value;
  std::string source;  ///< "the environment", or file and line: "/etc/nccl.conf:3"
  bool operator==(const NcclUserSetting&) const = default;
};

struct NcclUserSettings {
  std::vector<NcclUserSetting> list;  ///< by name; each once, as NCCL will see it
  /// INVALID_ARGUMENT: a value that NCCL would ignore or misread, with its source. NCCL is not used
  /// with such.
  Status error;

  const NcclUserSetting* find(const std::string& name) const;
  std::map<std::string, std::string> values() const;
};

/// From the environment, which wins, then the files in this order (param.cc of NCCL: setenv without
/// overwriting). A file that is not there is no error.
NcclUserSettings collect_nccl_settings(const std::map<std::string, std::string>& environment,
                                       const std::vector<std::string>& files);

/// This process's: its environment, then $NCCL_CONF_FILE or else ~/.nccl.conf, then /etc/nccl.conf.
NcclUserSettings read_nccl_user_settings();

}  // namespace shoal
