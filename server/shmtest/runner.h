#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/shmtest/condition.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

struct RunOptions {
  std::vector<std::string> command;  ///< never empty
  double timeout_s = 60;
  bool in_place = false;             ///< without namespaces the control runs all the same, as it is
  int jobs = 1;                      ///< conditions that run at the same time
  bool trace = true;                 ///< learn from the kernel how every process ends
  bool fail_fast = false;            ///< start no further condition after one has failed
  bool pass_output = false;          ///< copy the command's output to stderr as it arrives
  Accept accept = Accept::kSuccess;  ///< the control must exit with 0 all the same
};

/// An outcome keeps at most this many of the last bytes of a command's output.
inline constexpr size_t kTailBytes = 8192;

/// What the search for the smallest /dev/shm has found (min_size.h).
struct SizeSearch {
  bool wanted = false;
  uint64_t passes = 0;  ///< the smallest size in which the command passed; 0: none did
  uint64_t fails = 0;   ///< the largest size in which it failed; 0: none did
};

struct RunResult {
  std::vector<Outcome> outcomes;  ///< of the conditions that ended, in the order of the matrix
  int stopped_by = 0;             ///< SIGINT, SIGTERM or SIGHUP, if one ended the run; otherwise 0
  SizeSearch search = {};
  bool control_failed = false;  ///< then no other condition was run
};

/// Runs the command once in each condition, and calls ended(outcome) as each one ends. The control,
/// if it is among them, comes first and alone; if it fails, nothing else is run. The process must
/// have only one thread, because this forks. Errors: UNAVAILABLE if the kernel allows no
/// namespaces, with the reason and what to do; RESOURCE_EXHAUSTED if descriptors or processes have
/// run out; UNAVAILABLE also if a pipe cannot be made for another reason.
Result<RunResult> run_matrix(const std::vector<Condition>& matrix, const RunOptions& options,
                             const std::function<void(const Outcome&)>& ended);

}  // namespace shoal::shmtest
