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
  /// Sorted by name; each once, with the value that NCCL will see.
  std::vector<NcclUserSetting> list;
  /// INVALID_ARGUMENT: NCCL would ignore or misread a value; the message has its source. NCCL is
  /// not used with such a value.
  Status error;

  const NcclUserSetting* find(const std::string& name) const;
  std::map<std::string, std::string> values() const;
};

/// Takes the settings from the environment, which wins, then from the files in this order (param.cc
/// of NCCL: setenv without overwriting). A missing file is not an error.
NcclUserSettings collect_nccl_settings(const std::map<std::string, std::string>& environment,
                                       const std::vector<std::string>& files);

/// Reads the settings of this process: from its environment, then from $NCCL_CONF_FILE or otherwise
/// ~/.nccl.conf, then from /etc/nccl.conf.
NcclUserSettings read_nccl_user_settings();

}  // namespace shoal
