#pragma once

namespace shoal {

/// What every program of ours does first in main(): standard descriptors are open, and signals have
/// the meaning that the code relies on.
void begin_process(char** argv);

/// Ends this process by SIGPIPE, as other programs end whose reader has left. Returns if SIGPIPE
/// was ignored when this one started: then that is an error like any other.
void end_by_broken_pipe();

}  // namespace shoal
