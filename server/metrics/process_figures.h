#pragma once
#include <cstdint>
#include <optional>

namespace shoal {

/// What the kernel knows of this process. What cannot be read has no value.
struct ProcessFigures {
  double cpu_s = 0;  ///< processor time, of user and system
  std::optional<int64_t> resident_bytes, virtual_bytes;
  std::optional<int64_t> open_fds;
  std::optional<int64_t> max_fds;  ///< the soft limit; without a value, there is none
};
/// Takes two descriptors for a moment, one after the other.
ProcessFigures read_process_figures();

/// When this process was started, in seconds since 1970; if /proc is not mounted, now. Read it
/// once, because a clock that is set later must not move it.
double process_start_time_s();

}  // namespace shoal
