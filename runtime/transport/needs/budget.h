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
  std::string what;  ///< "2 slots of 262144 B for each of 4 ranks"
  int64_t bytes = 0;
  int64_t inodes = 0;  ///< files; among the memory: memfds, 0 for private memory
};

/// What a rung needs for a number of ranks, to the byte. Pure arithmetic.
struct ShmNeed {
  std::string rung;
  std::vector<Consumer> dev_shm;  ///< files in /dev/shm; charged to the memory cgroup too
  std::vector<Consumer> memory;   ///< memfds and private memory: the cgroup's alone
  int64_t descriptors = 0;        ///< open files at once in one process, at least; 0: not counted
  int64_t dev_shm_bytes() const;
  int64_t dev_shm_inodes() const;
  int64_t memory_bytes() const;  ///< of both lists
  /// Of the files and memfds, as a file size limit sees it: a consumer's bytes are evenly on its
  /// inodes.
  int64_t largest_file_bytes() const;
};

struct BudgetOptions {
  int64_t headroom_bytes = 0;  ///< of /dev/shm, left free for others
  int64_t reserved_bytes =
      0;  ///< weights, KV cache and all else that the ranks will take from the same cgroup
};

/// Why a need cannot be met here; ok where arithmetic has nothing against it. In this order, so
/// that the first answer is the one that would hurt most:
///   1. memory: the cgroup's, beyond which a page of tmpfs is SIGKILL and no errno; then the
///   machine's.
///      RESOURCE_EXHAUSTED, of every rung where what is reserved alone is too much.
///   2. the directory is there (NOT_FOUND), is a tmpfs, and files can be made in it
///   (PERMISSION_DENIED). A file that
///      could not be made for want of something is left to 3.
///   3. bytes with headroom (a tmpfs of size 0 has no limit), inodes. RESOURCE_EXHAUSTED.
///   4. the file size limit, of memfds too; what a real try answered. RESOURCE_EXHAUSTED.
///   5. the limit of open files: RESOURCE_EXHAUSTED, or a word more where something above has
///   refused.
/// Messages have the need and what is there, in bytes.
Status check_budget(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options);

}  // namespace shoal
