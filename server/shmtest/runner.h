#pragma once
#include <functional>
#include <string>
#include <vector>

#include "server/shmtest/condition.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

struct RunOptions {
  std::vector<std::string> command;  ///< never empty
  double timeout_s = 60;
  int jobs = 1;              ///< conditions at the same time
  bool fail_fast = false;    ///< start none after the first that fails
  bool pass_output = false;  ///< the command's output to stderr as it comes
};

/// The most of a command's output that an outcome keeps.
inline constexpr size_t kTailBytes = 8192;

struct RunResult {
  std::vector<Outcome> outcomes;  ///< of the conditions that ended, in the matrix's order
  int stopped_by = 0;             ///< SIGINT, SIGTERM or SIGHUP came: everything was ended; 0: none
};

/// Runs the command once in each condition; ended(outcome) as each ends. The process must have one
/// thread: it forks. PERMISSION_DENIED: the kernel gives no namespaces, with the reason and what to
/// do. INTERNAL: no pipe or process.
Result<RunResult> run_matrix(const std::vector<Condition>& matrix, const RunOptions& options,
                             const std::function<void(const Outcome&)>& ended);

/// NOT_FOUND or PERMISSION_DENIED where the shell would not find the program either; by PATH as
/// execvp.
Status find_program(const std::string& name);

}  // namespace shoal::shmtest
