#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/transport/needs/nccl_settings.h"

namespace shoal {

/// Each of NCCL's files in /dev/shm ends in a reference count.
inline constexpr int64_t kNcclRefcountBytes = 4;

/// sizeof(ncclProxyOp) and the pool's two factors, MAX_OPS_PER_PEER and NCCL_MAX_LOCAL_RANKS
/// (proxy.h, comm.h), in one minor version.
struct NcclRelease {
  int minor;       ///< of 2.x
  int last_patch;  ///< the newest known patch of that minor version
  int op_bytes;
  int ops_per_peer;
  int local_ranks;
};

/// Every known minor version, oldest first, without a gap.
std::span<const NcclRelease> nccl_releases();

/// The entry that is used for this version: its own, or of those that are known the nearest.
const NcclRelease& nccl_release_of(const NcclVersion& version);

/// struct ncclProxyOpsPool (proxy.h): the ops, one cursor, a free list per rank, and two locks.
constexpr int64_t nccl_pool_bytes(const NcclRelease& release) {
  return int64_t{release.op_bytes} * release.ops_per_peer * release.local_ranks + 8 +
         4 * release.local_ranks + 40 + 48;
}

/// Reads "2.27.7", "2.28.9+cuda13.0", "2.27" (which means the last patch of 2.27 that is known) or
/// a version code, "22707". Anything else is INVALID_ARGUMENT.
Result<NcclVersion> parse_nccl_version(std::string_view text);

}  // namespace shoal
