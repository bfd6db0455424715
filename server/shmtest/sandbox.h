#pragma once
#include <string>
#include <vector>

#include "server/shmtest/condition.h"

namespace shoal::shmtest {

/// What to run, in which condition, and where to report. The caller keeps the ownership of the
/// descriptors.
struct SandboxArgs {
  Condition condition;
  std::vector<std::string> command;  ///< never empty
  double timeout_s = 60;
  /// If the kernel allows no namespaces, the command runs without them. For the control alone,
  /// which changes nothing that they would have to hide.
  bool in_place = false;
  bool trace = true;  ///< learn from the kernel how every process ends (trace.h)
  int report = -1;    ///< pipe: the records of outcome.h are written here
  int output = -1;    ///< pipe: the command's stdout and stderr
  int lifeline = -1;  ///< pipe: nothing is ever written to it; its end means that the runner is
                      ///< gone or wants the sandbox to end
};

/// Runs the keeper: a child of the runner, just forked from a process with one thread. It makes the
/// namespaces, starts pid 1 in them (init.h), waits for it, and removes what outlives namespaces: a
/// directory on disk, a cgroup. It leaves the runner's process group, so that a signal to that
/// group does not kill the process that cleans up. Returns the exit status.
int run_keeper(const SandboxArgs& args);

}  // namespace shoal::shmtest
