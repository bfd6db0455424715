#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

struct NcclVersion {
  int major = 2;
  int minor = 28;
  int patch = 9;
  bool last_patch = false;  ///< only the minor version was given, and this is its last known patch
  /// The number that NCCL_VERSION_CODE has since 2.9: 22809.
  int code() const { return major * 10000 + minor * 100 + patch; }
};

/// The bytes of one connection's buffers. Defaults: computeBuffSizes of init.cc with device.h's
/// NCCL_LL_LINES_PER_THREAD, NCCL_LL_MAX_NTHREADS, NCCL_STEPS and so on, which have not changed
/// since 2.7.
struct NcclBuffers {
  int64_t ll = 524288;      ///< 8 lines x 512 threads x 8 steps x 16 bytes; NCCL_LL_BUFFSIZE
  int64_t ll128 = 4915200;  ///< 120 elements x 640 threads x 8 steps x 8 bytes; NCCL_LL128_BUFFSIZE
  int64_t simple = 4194304;  ///< NCCL_BUFFSIZE
};

/// The settings that decide how much of /dev/shm one node's ranks take.
struct NcclSettings {
  NcclVersion version;
  int ranks = 1;  ///< on this node
  /// peers[i][j]: i reaches j's GPU memory. Empty: as all_peers says.
  std::vector<std::vector<bool>> peers;
  bool all_peers = false;
  /// The group has ranks on other nodes too. Each local rank is then assumed to have a network
  /// connection.
  bool other_nodes = false;

  /// Channels that NCCL's search finds, after its doubling. If SHM is used its logs show 2 on PCIe
  /// 3 and 4. The code gives 4 at most (search.cc: doubled if the path has 25 GB/s).
  int found_channels = 4;
  int max_ctas = 0;      ///< ncclConfig_t::maxCTAs or NCCL_MAX_CTAS; 0: not set
  int min_ctas = 0;      ///< likewise
  int max_channels = 0;  ///< NCCL_MAX_NCHANNELS; 0: not set
  int min_channels = 0;  ///< NCCL_MIN_NCHANNELS; 0: not set

  bool tree = true;  ///< used beside the ring; without lazy connecting it is connected in any case
  /// Ring and tree have the same order of ranks, which takes fewer connections. It is not known
  /// before init.
  bool tree_follows_ring = false;
  bool send_recv = false;  ///< ncclSend and ncclRecv between all pairs

  bool cumem = true;       ///< NCCL_CUMEM_ENABLE
  bool cumem_host = true;  ///< NCCL_CUMEM_HOST_ENABLE, and every rank's probe of it succeeds
  /// The ranks are threads of one process, which use files even with cumem_host (shm.cc:
  /// req.legacy).
  bool one_process = false;
  bool runtime_connect = true;  ///< NCCL_RUNTIME_CONNECT
  bool nvls = true;             ///< NCCL_NVLS_ENABLE, on hardware that has it
  bool shm_disabled = false;    ///< NCCL_SHM_DISABLE
  bool p2p_disabled = false;    ///< NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC
  bool p2p_memcpy = false;      ///< NCCL_P2P_USE_CUDA_MEMCPY: a proxy thread copies; since 2.13
  bool shm_memcpy = false;      ///< NCCL_SHM_USE_CUDA_MEMCPY, likewise; from 2.13 to 2.30.4
  std::string net;  ///< NCCL_NET, only for messages: every network needs the proxy's pool
  NcclBuffers buffers;
  int communicators = 1;      ///< communicators that exist at once and share nothing
  int64_t page_bytes = 4096;  ///< what a file's size is rounded up to
};

/// Returns base with the variables (NCCL_*) of the environment applied. Unknown ones are ignored,
/// as NCCL does. INVALID_ARGUMENT names the variable whose value NCCL would ignore or misread.
Result<NcclSettings> nccl_settings(const std::map<std::string, std::string>& environment,
                                   NcclSettings base = {});

}  // namespace shoal
