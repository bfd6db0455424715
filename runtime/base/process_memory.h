#pragma once
#include <cstdint>
#include <optional>

namespace shoal {

/// Memory of this process, as the kernel counts it, in bytes.
struct ProcessMemory {
  int64_t virtual_bytes = 0;
  int64_t resident_bytes = 0;  ///< with pages of files and of shared memory
  int64_t shared_bytes = 0;    ///< these alone
};
/// No value if /proc is not mounted. Takes a descriptor for a moment.
std::optional<ProcessMemory> read_process_memory();

}  // namespace shoal
