#pragma once
#include <string>
#include <vector>

#include "server/shmtest/condition.h"

namespace shoal::shmtest {

/// What runs, where, and whom to tell. The descriptors stay the caller's.
struct SandboxArgs {
  Condition condition;
  std::vector<std::string> command;  ///< never empty
  double timeout_s = 60;
  int report = -1;  ///< pipe: records of outcome.h are written here
  int output = -1;  ///< pipe: the command's stdout and stderr
  int lifeline =
      -1;  ///< pipe: nothing is ever read; its end means that the runner is gone or wants an end
};

/// The keeper: a child of the runner, just forked from a process with one thread. Makes the
/// namespaces, starts pid 1 in them (init.h), waits for it, and takes away what outlives
/// namespaces: a directory on disk, a cgroup. Stays outside the runner's process group so that a
/// signal to that group leaves somebody to clean up. Returns the exit status.
int run_keeper(const SandboxArgs& args);

}  // namespace shoal::shmtest
