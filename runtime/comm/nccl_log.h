#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace shoal {

/// What one rank's NCCL log says (NCCL_DEBUG=INFO; the bytes need ALLOC in NCCL_DEBUG_SUBSYS too).
struct NcclLog {
  std::string version;  ///< "2.28.9+cuda13.0"; empty: the line was not there
  /// Connections that this rank sends on, by kind: {"SHM/direct": 2}, "P2P/CUMEM", "P2P/IPC",
  /// "NET/Socket", ...
  std::map<std::string, int> transports;
  int channels = 0;  ///< collective channels; 0: not said
  int64_t dev_shm_bytes =
      0;  ///< that this rank has allocated, reference counts among them, not rounded to pages
  int64_t dev_shm_charged =
      0;                  ///< the same, each file in whole pages of 4096 B, as a tmpfs charges it
  int dev_shm_files = 0;  ///< in so many files
  bool rings = false;     ///< "Connected all rings"
  bool trees = false;     ///< "Connected all trees"
  bool cumem_fallback =
      false;  ///< cuMem host memory was tried and did not work: files in /dev/shm instead
  std::string last_warning;  ///< without prefix; empty: none
  bool operator==(const NcclLog&) const = default;
};

/// Reads the lines of 2.12 to 2.30; what it does not know it leaves out.
NcclLog parse_nccl_log(std::string_view text);

}  // namespace shoal
