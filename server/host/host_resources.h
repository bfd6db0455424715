#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shoal {

/// What this process may use of the machine: the affinity mask and the cgroup count, not what is
/// built in.
struct HostResources {
  std::vector<int> cpus;  ///< the affinity mask, ascending; never empty
  double cpu_quota = 0;   ///< CPUs' worth of time that the cgroup allows; 0: no limit
  uint64_t memory_bytes =
      0;  ///< available: the least of MemAvailable and each cgroup's limit minus what it must keep

  /// CPUs' worth of compute: the mask, cut by the quota (rounded up); at least 1.
  int usable_cpus() const;
};

/// Looks at the system below root ("" is the real one; tests bring their own proc and sys). Never
/// fails: what cannot be read does not limit.
HostResources host_resources(const std::string& root = "");

}  // namespace shoal
