#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/transport/facts/fact_files.h"

namespace shoal {

/// How many processes the kernel's out-of-memory killer has ended so far. Each number is nullopt if
/// it cannot be read here.
struct OomKills {
  std::optional<int64_t> of_group;    ///< in the memory cgroup of this process (v2 or v1)
  std::optional<int64_t> of_machine;  ///< oom_kill in /proc/vmstat, of all groups

  /// True if the killer may have ended a process since `before`: a number has grown, or none is
  /// known. The kernel counts before it sends the SIGKILL.
  bool may_have_grown_since(const OomKills& before) const;
};

OomKills oom_kills(const SystemPaths& paths = {});

/// The number in a folder of the cgroup file system: memory.events of version 2, or
/// memory.oom_control of version 1.
std::optional<int64_t> oom_kills_of_group(const std::string& folder);

}  // namespace shoal
