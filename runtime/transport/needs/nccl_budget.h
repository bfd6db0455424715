#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/transport/needs/budget.h"

namespace shoal {

struct NcclVersion {
  int major = 2;
  int minor = 28;
  int patch = 9;
  /// As NCCL_VERSION_CODE since 2.9: 22809.
  int code() const { return major * 10000 + minor * 100 + patch; }
};

/// "2.27.7", "2.28.9+cuda13.0", "2.27" (then the last patch of 2.27 that is known) or a version
/// code, "22707".
Result<NcclVersion> parse_nccl_version(std::string_view text);

/// Bytes of one connection's buffers. Defaults: computeBuffSizes of init.cc with device.h's
/// NCCL_LL_LINES_PER_THREAD, NCCL_LL_MAX_NTHREADS, NCCL_STEPS and so on; unchanged since 2.7.
struct NcclBuffers {
  int64_t ll = 524288;      ///< 8 lines x 512 threads x 8 steps x 16 bytes; NCCL_LL_BUFFSIZE
  int64_t ll128 = 4915200;  ///< 120 elements x 640 threads x 8 steps x 8 bytes; NCCL_LL128_BUFFSIZE
  int64_t simple = 4194304;  ///< NCCL_BUFFSIZE
};

/// What decides how much of /dev/shm one node's ranks take.
struct NcclSettings {
  NcclVersion version;
  int ranks = 1;  ///< on this node
  /// peers[i][j]: i reaches j's GPU memory. Empty: as all_peers says.
  std::vector<std::vector<bool>> peers;
  bool all_peers = false;
  bool other_nodes =
      false;  ///< ranks elsewhere too: each local rank is taken to have a network connection

  /// Channels that NCCL's search finds, after its doubling. Where SHM is used its logs show 2 on
  /// PCIe 3 and 4; 4 is the most the code gives (search.cc: doubled where the path has 25 GB/s).
  int found_channels = 4;
  int max_ctas = 0;      ///< ncclConfig_t::maxCTAs or NCCL_MAX_CTAS; 0: not set
  int min_ctas = 0;      ///< likewise
  int max_channels = 0;  ///< NCCL_MAX_NCHANNELS; 0: not set
  int min_channels = 0;  ///< NCCL_MIN_NCHANNELS; 0: not set

  bool tree = true;  ///< beside the ring; connected in any case where init connects all
  bool tree_follows_ring =
      false;  ///< both graphs use one order of ranks: fewer connections. Not known before init
  bool send_recv = false;  ///< ncclSend and ncclRecv between all pairs

  bool cumem = true;       ///< NCCL_CUMEM_ENABLE
  bool cumem_host = true;  ///< NCCL_CUMEM_HOST_ENABLE, and every rank's probe of it succeeds
  bool one_process =
      false;  ///< the ranks are threads: files even with cumem_host (shm.cc: req.legacy)
  bool runtime_connect = true;  ///< NCCL_RUNTIME_CONNECT
  bool nvls = true;             ///< NCCL_NVLS_ENABLE, on hardware that has it
  bool shm_disabled = false;    ///< NCCL_SHM_DISABLE
  bool p2p_disabled = false;    ///< NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC
  bool cuda_memcpy =
      false;  ///< NCCL_SHM_USE_CUDA_MEMCPY or NCCL_P2P_USE_CUDA_MEMCPY: copies by a proxy thread
  std::string net;  ///< NCCL_NET, for the text alone: every network needs the proxy's pool
  NcclBuffers buffers;
  int communicators = 1;      ///< alive at once and sharing nothing
  int64_t page_bytes = 4096;  ///< what a file's size is rounded up to
};

/// Sizes as NCCL asks for them and as its "Error while creating shared memory segment" prints them.
/// "failed to extend" prints 4 more: each file ends in a reference count.
struct NcclSegments {
  int64_t data = 0;     ///< receiver's half of an SHM connection: 9637888 by default
  int64_t control = 0;  ///< sender's half: 4096
  int64_t pool = 0;     ///< proxy-ops pool: by version
  int64_t nvls = 0;     ///< NVLS registration region: by ranks
};
inline constexpr int64_t kNcclRefcountBytes = 4;

struct NcclNeed {
  ShmNeed need;
  NcclSegments segments;
  int channels = 0;
  /// What was taken to be so where the settings cannot tell: each makes the need an upper bound.
  std::vector<std::string> assumptions;
};

/// To the byte where nothing was assumed; from 2.12 on. INVALID_ARGUMENT names the setting that is
/// out of range. Sizes are those of x86-64: glibc's mutex within the pool differs on others.
Result<NcclNeed> nccl_need(const NcclSettings& settings);

/// One SHM connection of one channel and direction in /dev/shm: both halves, in pages. 9650176 by
/// default.
int64_t nccl_connection_bytes(const NcclBuffers& buffers, int64_t page_bytes = 4096);

/// Variables (NCCL_*) over base. Unknown ones are ignored, as NCCL does; INVALID_ARGUMENT names the
/// variable whose value NCCL would ignore or misread.
Result<NcclSettings> nccl_settings(const std::map<std::string, std::string>& environment,
                                   NcclSettings base = {});

/// What a size in NCCL's message is, with or without the 4 bytes: 33030532 -> "proxy-ops pool of
/// NCCL 2.26 to 2.27". Empty: not one of the known sizes.
std::string explain_nccl_size(int64_t bytes);

}  // namespace shoal
