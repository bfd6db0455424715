#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/transport/remedy.h"

namespace shoal {

/// What is wrong with /dev/shm for the largest of the needs.
struct ShmTrouble {
  std::string ranks;      ///< that the need is for: "2 ranks"
  bool missing = false;   ///< there is no such directory
  bool occupied = false;  ///< and something else has its path
  bool no_tmpfs = false;
  bool read_only = false;
  bool forbidden = false;
  bool small = false;
  bool few_inodes = false;
  bool at_least = false;  ///< how much more than `bytes` may be needed is not known
  int64_t bytes = 0;      ///< needed, with headroom
  int64_t inodes = 0;     ///< needed
  /// What is there now, and what every size counts beside the need; a new container lacks what
  /// killed runs left. 0: nothing, or it is not known.
  int64_t used_bytes = 0;
  /// What the file system must hold, in whole pages: what is used now and what is needed.
  int64_t total_bytes = 0;
  int64_t total_inodes = 0;  ///< likewise
  bool mount_helps() const {
    return missing || no_tmpfs || read_only || forbidden || small || few_inodes;
  }
};

/// ranks: that the needs are for, "2 ranks".
ShmTrouble shm_trouble(const HostFacts& facts, const std::string& ranks,
                       const std::vector<Shortage>& refused);

/// Suggests a /dev/shm that is there, can be written and is large enough.
void add_dev_shm(const HostFacts& facts, const ShmTrouble& trouble, std::vector<Remedy>& list);

/// Suggests the command that removes the files that killed runs left, if room is missing. If
/// removing them is enough, it comes first in the list, otherwise last.
void add_stale(const HostFacts& facts, const ShmTrouble& trouble, const std::string& command,
               std::vector<Remedy>& list);

}  // namespace shoal
