#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <sys/types.h>
#include <vector>

namespace shoal {

/// The state of a process in /proc: 'R', 'S', 'D', 'T' ...; '?' if it cannot be read or the process
/// is gone.
char process_state(pid_t process);

/// True if a signal or a debugger has stopped the process.
bool is_stopped(pid_t process);

/// True if the process is in a cgroup, of version 1 or 2, that is frozen. False if that cannot be
/// read.
bool is_frozen(pid_t process);

/// True if the process writes a core file: it is dead, and only its end is still to come. False if
/// that cannot be read (Linux before 4.15).
bool dumps_core(pid_t process);

/// The processor time that all threads of the process have used so far; nullopt if it is gone.
std::optional<std::chrono::nanoseconds> processor_time(pid_t process);

/// The memory of the process, in bytes, that belongs to it alone and that no file holds, also what
/// is swapped out. 0: it is not known.
int64_t private_bytes(pid_t process);

/// The sum of all; 0 if one is not known.
int64_t private_bytes(const std::vector<pid_t>& processes);

}  // namespace shoal
