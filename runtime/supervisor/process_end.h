#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"

namespace shoal {

/// How a child ended: waitid's si_code and si_status.
struct ProcessEnd {
  /// 0: it has ended, but how is not known, because SIGCHLD is ignored and the kernel kept nothing.
  int code = 0;
  int status = 0;  ///< exit code or signal
};

/// Reaps a child and returns how it ended; nullopt: it has not ended. Never waits.
std::optional<ProcessEnd> take_end(pid_t child);

/// Like take_end, but waits for the end; nullopt: it has not ended by the deadline. Without a pidfd
/// it looks every few milliseconds.
std::optional<ProcessEnd> await_end(pid_t child, const Fd& pidfd, Deadline deadline);

/// "was killed by signal 9 (Killed)", "exited with code 1".
std::string describe_exit(int code, int status);

/// Whether any thread of the process is running, or would if it got a processor. A killed process
/// that runs is giving its memory back, and will end.
bool uses_processor(pid_t process);

}  // namespace shoal
