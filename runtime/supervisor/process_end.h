#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"

namespace shoal {

/// How long the kernel may take to end a killed process. One that hangs in the kernel (a dead file
/// server, a driver) does not die of SIGKILL, so nobody waits for a death without a bound.
inline constexpr int64_t kDeathMs = 2'000;

/// How a child ended: waitid's si_code and si_status.
struct ProcessEnd {
  int code = 0;  ///< 0: it has ended and nobody knows how, since SIGCHLD is ignored and the kernel
                 ///< kept nothing
  int status = 0;  ///< exit code or signal
};

/// Takes a child's end from the kernel; nullopt: it has not ended. Never waits.
std::optional<ProcessEnd> take_end(pid_t child);

/// The same, as soon as there is one; nullopt: not before the deadline. Without a pidfd it looks
/// every few milliseconds.
std::optional<ProcessEnd> await_end(pid_t child, const Fd& pidfd, Deadline deadline);

/// "was killed by signal 9 (Killed)", "exited with code 1".
std::string describe_exit(int code, int status);

/// Does any of its threads use a processor? Of a killed process: it is giving its memory back, and
/// will end.
bool uses_processor(pid_t process);

}  // namespace shoal
