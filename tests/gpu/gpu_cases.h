#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace shoal::gpu {

struct Options {
  std::string module;        ///< path of libshoal_cuda.so, or of a stand-in
  std::string nccl_library;  ///< empty: nccl is skipped
  std::vector<int> ranks = {2, 4};
  int devices = 1;  ///< that the module shows
  bool stand_in =
      false;  ///< the module is one of tests/fakes: without CUDA's own runtime beside it
  bool any_room =
      false;           ///< NCCL is tried even where /dev/shm has not the room: to see what it says
  bool quick = false;  ///< fewer rounds: under a tool that makes everything many times slower
};

/// Why a case cannot be tried here: it begins a result.
inline constexpr const char* kSkip = "skip: ";

/// One thing to see. The result is empty when it is so. Each runs in a process that has not touched
/// a device, and those that touch one do it in processes of their own (bench/gpu/rank_processes.h).
struct Case {
  std::string name;
  std::function<std::string()> run;
};

/// The module's table, one device: memory, copies, events, errors.
void add_table_cases(const Options& options, std::vector<Case>& cases);
/// Tree sums against the CPU's, bit for bit.
void add_tree_sum_cases(const Options& options, std::vector<Case>& cases);
/// The push all_reduce with the ranks as threads of one process on one device: its protocol alone.
void add_push_cases(const Options& options, std::vector<Case>& cases);
/// Every rung in processes, through the conformance suite's checks.
void add_collective_cases(const Options& options, std::vector<Case>& cases);

/// For cases: returns the error's text from the enclosing function unless the status is ok.
#define SHOAL_EXPECT_OK(expression)                                                        \
  do {                                                                                     \
    if (::shoal::Status status_ = (expression); !status_.ok()) return status_.to_string(); \
  } while (false)

}  // namespace shoal::gpu
