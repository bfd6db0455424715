#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/needs/budget.h"

namespace shoal {

/// A change that would let a refused rung work here.
struct Remedy {
  /// Where it is applied: "docker" (podman too), "kubernetes", "mount", "sysctl", "ulimit",
  /// "cgroup", "other".
  std::string kind;
  std::string title;  ///< one line for people, with the numbers
  /// To paste: a command line or YAML, with comments where they help. No final newline.
  std::string text;
  bool sizes_dev_shm = false;  ///< the text has a size for /dev/shm that is enough
  /// The title where ranks do as well without it, so that nothing is wrong; empty: `title`.
  std::string optional_title = {};
};

/// A rung that was refused, and the numbers it was refused with.
struct Shortage {
  ShmNeed need;
  Status status;
  int64_t headroom_bytes = 0;  ///< as in BudgetOptions
  int64_t reserved_bytes = 0;
};

/// Removes what killed runs left in /dev/shm.
inline constexpr const char* kCleanStale = "shoal doctor --clean-stale";

/// What to change in this environment so that each of the refused rungs works, the most useful
/// first. There are remedies only for causes that the facts and needs show; the status is not read.
/// Sizes are enough for the largest of the needs, exact to the page: with one page less
/// check_budget still refuses. The titles also offer a round size. world_size: the ranks that the
/// needs are for, which the titles name, and `communicators`, of each of which they are.
/// clean_stale: the command that removes what killed runs left. Empty: no remedy is known.
std::vector<Remedy> remedies(const HostFacts& facts, int world_size,
                             const std::vector<Shortage>& refused,
                             const std::string& clean_stale = kCleanStale, int communicators = 1);

/// What the user can change after a start of this many ranks has failed for a reason that was not
/// the refusal of a rung. A lack of descriptors has a remedy, and so has a container without GPUs.
std::vector<Remedy> remedies_of_failure(const HostFacts& facts, int world_size,
                                        const Status& failure);

}  // namespace shoal
