#pragma once
#include <string>
#include <sys/types.h>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// A second process of this program that does one thing which may hang or be killed, and reports on
/// its stdout.
struct HelperProcess {
  pid_t pid = -1;
  Fd pidfd;   ///< not valid if the kernel gave none; process_end.h then polls
  Fd output;  ///< the reading end of its stdout
};

/// Starts this same executable with `words` after the program's name, which main() must dispatch.
/// posix_spawn, because a fork of a process with threads and a large address space is neither safe
/// nor cheap. RESOURCE_EXHAUSTED: no pipe or no process could be made.
Result<HelperProcess> start_helper(std::vector<std::string> words);

/// Kills and reaps it, for which the kernel has kDeathMs. False: it hangs in the kernel and is left
/// behind.
bool kill_helper(const HelperProcess& helper);

}  // namespace shoal
