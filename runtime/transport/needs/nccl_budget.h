#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/needs/nccl_releases.h"
#include "runtime/transport/needs/nccl_settings.h"

namespace shoal {

/// Sizes as NCCL asks for them, and as its message "Error while creating shared memory segment"
/// prints them. Since 2.16 "failed to extend" prints 4 bytes more, because each file ends in a
/// reference count.
struct NcclSegments {
  int64_t data = 0;     ///< receiver's half of an SHM connection: 9637888 by default
  int64_t control = 0;  ///< sender's half: 4096
  int64_t pool = 0;     ///< proxy-ops pool: depends on the version
  int64_t nvls = 0;     ///< NVLS registration region: depends on version and number of ranks
};

struct NcclNeed {
  /// need.bound: kExact if nothing was assumed, kAtLeast if the version is not known
  /// (is_known_nccl), because a newer one may take more, and otherwise kAtMost.
  ShmNeed need;
  NcclSegments segments;
  int channels = 0;
  /// What was assumed because neither the table nor the settings decide it.
  std::vector<std::string> assumptions;
};

/// What NCCL takes with these settings, exact to the byte if nothing was assumed. Known from 2.12
/// on; for a version that is not known, the least that the last one known before it would take.
/// INVALID_ARGUMENT names the setting that is out of range. Sizes are those of x86-64
/// (NcclRelease).
Result<NcclNeed> nccl_need(const NcclSettings& settings);

/// The bytes of one SHM connection of one channel and direction in /dev/shm: both halves, in whole
/// pages, since 2.16. 9650176 by default.
int64_t nccl_connection_bytes(const NcclBuffers& buffers, int64_t page_bytes = 4096);

/// Explains a size in a message of NCCL's, with or without the 4 bytes: 33030532 -> "proxy-ops pool
/// of NCCL 2.26 to 2.27". Empty: not one of the known sizes.
std::string explain_nccl_size(int64_t bytes);

/// Whether NCCL makes files of this many bytes in /dev/shm, with its default buffers or with these:
/// halves of a connection, proxy-ops pools, NVLS regions. Each has the 4 bytes at its end.
bool is_nccl_file_size(int64_t bytes, const NcclBuffers& buffers = {});

}  // namespace shoal
