#pragma once
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/status.h"
#include "runtime/comm/device/nccl_known_bugs.h"

namespace shoal {

/// The part of NCCL's C interface that is used here. It is declared again because the base program
/// is built without nccl.h and finds the library when it runs. A test compares these declarations
/// with the header if that is installed.

/// ncclUniqueId: identifies the meeting point of one communicator's ranks.
struct NcclUniqueId {
  char internal[128] = {};
};

/// ncclConfig_t in the layout of 2.27.5. A newer library reads `size` bytes of it and, guided by
/// `version`, uses its own defaults for the fields that were added later.
struct NcclConfig {
  static constexpr int kNotSet = INT_MIN;  ///< NCCL_CONFIG_UNDEF_INT
  size_t size = sizeof(NcclConfig);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 22705;
  int blocking = kNotSet;
  int cga_cluster_size = kNotSet;
  int min_ctas = kNotSet;
  int max_ctas = kNotSet;
  const char* net_name = nullptr;
  int split_share = kNotSet;
  int traffic_class = kNotSet;
  const char* comm_name = nullptr;
  int collnet_enable = kNotSet;
  int cta_policy = kNotSet;
  int shrink_share = kNotSet;
  int nvls_ctas = kNotSet;
};

/// ncclResult_t
enum NcclResult : uint32_t {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

inline constexpr uint32_t kNcclInt8 = 0;     ///< ncclDataType_t
inline constexpr uint32_t kNcclFloat32 = 7;  ///< ncclDataType_t
inline constexpr uint32_t kNcclSum = 0;      ///< ncclRedOp_t

using NcclComm = void*;  ///< ncclComm_t

/// A loaded library's functions. stream is a cudaStream_t.
struct NcclApi {
  NcclResult (*get_version)(int* version) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                      NcclConfig* config) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* error) = nullptr;
  NcclResult (*all_gather)(const void* mine, void* all, size_t count, uint32_t type, NcclComm comm,
                           void* stream) = nullptr;
  NcclResult (*all_reduce)(const void* own, void* out, size_t count, uint32_t type, uint32_t op,
                           NcclComm comm, void* stream) = nullptr;
  const char* (*get_error_string)(NcclResult result) = nullptr;
  const char* (*get_last_error)(NcclComm comm) = nullptr;

  int version = 0;   ///< NCCL_VERSION_CODE, such as 22809
  std::string path;  ///< of the file that the loader has opened
};

/// Opens `library` (a path, or a name like "libnccl.so.2" for the loader's search) for the rest of
/// the process: RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, never closed. Needs no driver and makes no
/// context. NCCL reads its environment later: once, when it is first used.
/// FAILED_PRECONDITION: the library cannot be loaded (with the loader's message), a function is
/// missing, or the version is 3.0 or later.
Result<NcclApi> open_nccl(const std::string& library);

/// The same for a library that ranks are to use. FAILED_PRECONDITION too if the version has a bug
/// for which it is refused (nccl_known_bugs.h).
Result<NcclApi> load_nccl(const std::string& library);

/// A call of NCCL, for messages. It is turned into text only if it fails.
struct NcclCall {
  const char* function = "";
  size_t bytes = 0;  ///< 0: it has no size

  std::string text() const;
};

/// The last error message of any thread of NCCL, or "". NCCL's threads share the buffer that it is
/// copied from, so it may be a mixture of two messages while they fail.
std::string nccl_last_words(const NcclApi& api);

/// The error of a call that returned `result`, with NCCL's last words. RESOURCE_EXHAUSTED, blamed
/// on shared memory: it found no room for a segment. PERMISSION_DENIED, UNAVAILABLE (a peer is
/// gone), FAILED_PRECONDITION (it was used wrongly) or INTERNAL otherwise.
Status nccl_failure(const NcclApi& api, NcclResult result, const NcclCall& call);

}  // namespace shoal
