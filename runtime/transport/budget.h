#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/transport/host_facts.h"

namespace shoal {

/// One user of shared memory and what it takes. Bytes are whole pages, as a file system charges them.
struct Consumer {
  std::string what;  ///< "2 slots of 262144 B for each of 4 ranks"
  int64_t bytes = 0;
  int64_t inodes = 0;
};

/// What a rung needs for a number of ranks, to the byte. Pure arithmetic.
struct ShmNeed {
  std::string rung;
  std::vector<Consumer> dev_shm;  ///< files in /dev/shm; charged to the memory cgroup too
  std::vector<Consumer> memory;   ///< memfds and private memory: the cgroup's alone
  int64_t dev_shm_bytes() const;
  int64_t dev_shm_inodes() const;
  int64_t memory_bytes() const;  ///< of both lists
};

struct BudgetOptions {
  int64_t headroom_bytes = 0;  ///< of /dev/shm, left free for others
  int64_t reserved_bytes = 0;  ///< weights, KV cache and all else that the ranks will take from the same cgroup
};

/// Why a need cannot be met here; ok where arithmetic has nothing against it. The cgroup comes first: beyond it a page
/// of tmpfs is SIGKILL and no errno. RESOURCE_EXHAUSTED with both numbers; NOT_FOUND: no such directory;
/// PERMISSION_DENIED: not writable, or it is no tmpfs.
Status check_budget(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options);

}  // namespace shoal
