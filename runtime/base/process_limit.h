#pragma once
#include <string>

namespace shoal {

/// Whether the kernel refuses memory for the stack of a thread right now. It allocates nothing, so
/// that a signal handler may call it.
bool stack_is_refused();

/// "; its user may have 16 processes and threads (ulimit -u), and a container may limit them too
/// (pids)", for an error that a process or thread could not be started (EAGAIN). If its stack is
/// refused, which is the same error, the limit of memory instead.
std::string process_limit();

}  // namespace shoal
