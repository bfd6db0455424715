#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/transport/needs/nccl_settings.h"

namespace shoal {

/// Since 2.16 each of NCCL's files in /dev/shm ends in a reference count.
inline constexpr int64_t kNcclRefcountBytes = 4;

/// What NCCL makes its files in /dev/shm of, from one release on to a later one of the same minor
/// version. Bytes are those of x86-64: the locks of glibc have other sizes elsewhere, and
/// CACHE_LINE_SIZE is another.
struct NcclRelease {
  int minor;       ///< of 2.x
  int last_patch;  ///< the last patch that is known to be like this
  /// The proxy-ops pool (proxy.h, device.h): sizeof(ncclProxyOp), MAX_OPS_PER_PEER and
  /// NCCL_MAX_LOCAL_RANKS, which is also the most ranks of a node.
  int op_bytes;
  int ops_per_peer;
  int local_ranks;
  int flag_bytes;  ///< of the pool: the flag that its locks have been made, and what pads it
  /// The region in which ranks register buffers for NVLS (transport/nvls.cc) has, in bytes,
  /// 2 * (nvls_head_bytes + nvls_rank_bytes * ranks of the node). Both are 0 if there is none.
  int nvls_head_bytes;
  int nvls_rank_bytes;
};

/// Every known release, oldest first.
std::span<const NcclRelease> nccl_releases();

/// Whether what this version takes is known: its minor version is in the table, and its patch is
/// not newer than the newest known one. No two patches of a minor version have had pools of
/// different sizes so far, but their regions for NVLS differ in 2.28.
bool is_known_nccl(const NcclVersion& version);

/// The entry of this version, or if it is not known the last one before it.
const NcclRelease& nccl_release_of(const NcclVersion& version);

/// sizeof(ncclProxyOpsPool) (proxy.h): the ops, two cursors, a free list per rank, the flag, a
/// mutex and a condition variable.
constexpr int64_t nccl_pool_bytes(const NcclRelease& release) {
  return int64_t{release.op_bytes} * release.ops_per_peer * release.local_ranks + 8 +
         4 * release.local_ranks + release.flag_bytes + 40 + 48;
}

/// The size of the region for NVLS of a node with this many ranks.
constexpr int64_t nccl_nvls_bytes(const NcclRelease& release, int ranks) {
  return 2 * (int64_t{release.nvls_head_bytes} + int64_t{release.nvls_rank_bytes} * ranks);
}

/// What is added to each file: 0 or kNcclRefcountBytes.
constexpr int64_t nccl_count_bytes(const NcclRelease& release) {
  return release.minor < 16 ? 0 : kNcclRefcountBytes;
}

/// Reads "2.27.7", "2.28.9+cuda13.0", "2.27" (which means the last patch of 2.27 that is known) or
/// a version code, "22707". Anything else is INVALID_ARGUMENT.
Result<NcclVersion> parse_nccl_version(std::string_view text);

}  // namespace shoal
