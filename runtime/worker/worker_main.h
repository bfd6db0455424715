#pragma once

namespace shoal {

/// `shoal worker`: a Rank (runtime/rank/rank.h) whose work is its part of a model. Returns the
/// process's exit code.
int worker_main(int control_fd);

}  // namespace shoal
