#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace shoal::gpu {

struct Options {
  std::string module;          ///< path of libshoal_cuda.so, or of a stand-in
  std::string nccl_library;    ///< empty: nccl is skipped
  std::string cublas_library;  ///< libcublasLt; empty: its products are skipped
  std::vector<int> ranks = {2, 4};
  int devices = 1;        ///< number of devices that the module shows
  int compute_major = 9;  ///< of the first one's compute capability
  bool stand_in =
      /// The module is one of tests/fakes, so CUDA's own runtime is not used beside it.
      false;
  bool any_room =
      /// Try NCCL even if /dev/shm lacks the room, in order to see its error.
      false;
  bool quick = false;  ///< run fewer rounds, for tools that make everything many times slower
};

/// A result that starts with this gives the reason why a case cannot be tried here.
inline constexpr const char* kSkip = "skip: ";

/// One check. run() returns "" if it passed. Each runs in a process that has not touched a device,
/// and checks that touch one do so in child processes (bench/gpu/rank_processes.h).
struct Case {
  std::string name;
  std::function<std::string()> run;
};

/// The module's table with one device: memory, copies, events, errors.
void add_table_cases(const Options& options, std::vector<Case>& cases);
/// Tree sums compared with the CPU's, bit for bit.
void add_tree_sum_cases(const Options& options, std::vector<Case>& cases);
/// The judge's tiles on the tensor cores, and single operations beside the host's.
void add_arith_cases(const Options& options, std::vector<Case>& cases);
/// Products with weights of each type, and the arithmetic of tensor cores that they show.
void add_product_cases(const Options& options, std::vector<Case>& cases);
/// The other ops of a layer: those that go over rows, q, k and v, and attention.
void add_layer_cases(const Options& options, std::vector<Case>& cases);
void add_add_norm_cases(const Options& options, std::vector<Case>& cases);
void add_qkv_cases(const Options& options, std::vector<Case>& cases);
void add_attention_cases(const Options& options, std::vector<Case>& cases);
/// Products by cuBLASLt and by own kernels. The cases check that both agree, and measure how long
/// each takes.
void add_library_cases(const Options& options, std::vector<Case>& cases);
/// How long the ops of a model's step take.
void add_op_times_cases(const Options& options, std::vector<Case>& cases);
/// The push all_reduce with the ranks as threads of one process on one device. This tests its
/// protocol alone.
void add_push_cases(const Options& options, std::vector<Case>& cases);
/// Every rung with ranks in processes, through the checks of the conformance suite.
void add_collective_cases(const Options& options, std::vector<Case>& cases);

/// For use in cases: unless the status is ok, returns its text from the enclosing function.
#define SHOAL_EXPECT_OK(expression)                                                        \
  do {                                                                                     \
    if (::shoal::Status status_ = (expression); !status_.ok()) return status_.to_string(); \
  } while (false)

}  // namespace shoal::gpu
