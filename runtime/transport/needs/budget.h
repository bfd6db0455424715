#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// One user of shared memory and what it takes. Bytes are whole pages, as a file system charges
/// them.
struct Consumer {
  std::string what;  ///< "2 slots of 262144 B (256 KiB) for each of 4 ranks"
  int64_t bytes = 0;
  int64_t inodes = 0;  ///< files; in ShmNeed::memory memfds, or 0 for private memory
};

/// How the bytes of a need stand to those that are really taken.
enum class Bound {
  kExact,
  kAtMost,   ///< something was assumed of which less may be true
  kAtLeast,  ///< how much more is taken is not known, so that no rung is chosen by it
};
const char* name(Bound bound);  ///< "exact", "at-most", "at-least": as in JSON
/// "", "at most " or "at least ": what people read before the figure.
const char* words(Bound bound);

/// What a rung needs for a number of ranks, to the byte unless `bound` says otherwise. Pure
/// arithmetic.
struct ShmNeed {
  std::string rung;
  std::vector<Consumer> dev_shm;  ///< files in /dev/shm; charged to the memory cgroup too
  std::vector<Consumer> memory;   ///< memfds and private memory; charged to the memory cgroup only
  /// At least this many files are open in one process at once; 0: not counted.
  int64_t descriptors = 0;
  Bound bound = Bound::kExact;  ///< of the bytes in /dev/shm
  int64_t dev_shm_bytes() const;
  int64_t dev_shm_inodes() const;
  int64_t memory_bytes() const;  ///< of both lists
  /// The largest file or memfd, as a file size limit counts it. The bytes of a consumer are spread
  /// evenly over its inodes.
  int64_t largest_file_bytes() const;
};

struct BudgetOptions {
  int64_t headroom_bytes = 0;  ///< of /dev/shm, left free for others
  /// Weights, KV cache and everything else that the ranks will take from the same cgroup.
  int64_t reserved_bytes = 0;
};

/// Why a need cannot be met here; ok if no number forbids it. The checks come in this order, so
/// that the first answer is the one that would hurt most:
///   1. Memory: first the cgroup's, because beyond its limit the kernel answers a page of tmpfs
///      with SIGKILL instead of an errno, then the machine's. RESOURCE_EXHAUSTED, for every rung if
///      what is reserved is too much by itself.
///   2. The directory exists (NOT_FOUND), is a tmpfs, and files can be made in it
///      (PERMISSION_DENIED). A file that could not be made because something ran out is left to 3.
///   3. Bytes with headroom (a tmpfs of size 0 has no limit), then inodes. RESOURCE_EXHAUSTED.
///   4. The file size limit, which applies to memfds too, then what a real allocation answered.
///      RESOURCE_EXHAUSTED.
///   5. The limit of open files. RESOURCE_EXHAUSTED, or an addition to the message of an earlier
///      refusal.
/// Messages have the need and what is available, as bytes_text() writes them.
Status check_budget(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options);

/// The same for a start that will take these bytes next. If they are kAtLeast, the bytes of
/// /dev/shm refuse nothing, because taking them is a better answer. The others still do: a page
/// beyond the memory limit, or a file beyond the size limit, would be a signal.
Status check_before_reserving(const ShmNeed& need, const HostFacts& facts,
                              const BudgetOptions& options);

}  // namespace shoal
