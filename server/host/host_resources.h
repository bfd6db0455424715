#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "models/library_products.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// The part of a device's memory that one rank may use.
struct DevicePart {
  uint64_t bytes = 0;
  uint64_t taken_bytes = 0;  ///< what others have of it; 0 also if nobody knows
};

/// What this process may use of the machine. The affinity mask and the cgroup decide this, not the
/// hardware that is installed.
struct HostResources {
  std::vector<int> cpus;  ///< the affinity mask, ascending; never empty
  double cpu_quota = 0;   ///< CPU time that the cgroup allows, in CPUs; 0: no limit
  /// Available memory: the least of MemAvailable and, for each cgroup, its limit minus the memory
  /// that it cannot reclaim.
  uint64_t memory_bytes = 0;
  /// For each device of the group, the part of one of its ranks. Empty: no devices are used.
  std::vector<DevicePart> devices = {};
  ProductLibrary library = {};  ///< the one that was loaded, for these devices

  /// The number of CPUs that can compute at the same time: those of the mask, but at most the quota
  /// (rounded up), and at least 1.
  int usable_cpus() const;
};

/// Reads proc and sys below root ("" is the real system; tests pass their own). It never fails,
/// because a file that cannot be read counts as no limit.
HostResources host_resources(const std::string& root = "");

/// The same, and what each rank may have of its device, as the facts show it.
HostResources host_resources(const GpuFacts& gpu);

}  // namespace shoal
