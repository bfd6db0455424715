#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace shoal {

/// What one rank's NCCL log reports (with NCCL_DEBUG=INFO; for the bytes NCCL_DEBUG_SUBSYS must
/// include ALLOC).
struct NcclLog {
  std::string version;  ///< "2.28.9+cuda13.0"; empty: the log has no such line
  /// Connections that this rank sends on, by kind: {"SHM/direct": 2}, "P2P/CUMEM", "P2P/IPC",
  /// "NET/Socket", ...
  std::map<std::string, int> transports;
  int channels = 0;  ///< collective channels; 0: not in the log
  /// What this rank has allocated, including the reference counts, not rounded to pages.
  /// Since 2.30.7 this is in the log only if NCCL_DEBUG_SUBSYS includes ALLOC_HOST.
  int64_t dev_shm_bytes = 0;
  /// The same with each file rounded up to whole pages, as a tmpfs charges it.
  int64_t dev_shm_charged = 0;
  int dev_shm_files = 0;  ///< the number of files that hold these bytes
  bool rings = false;     ///< "Connected all rings"
  bool trees = false;     ///< "Connected all trees"
  /// cuMem host memory was tried and did not work, so that NCCL uses files in /dev/shm instead.
  bool cumem_fallback = false;
  std::string last_warning;  ///< without prefix; empty: none
  bool operator==(const NcclLog&) const = default;
};

/// Reads the log lines of NCCL 2.12 to 2.32. Lines that it does not know are left out.
NcclLog parse_nccl_log(std::string_view text);

}  // namespace shoal
