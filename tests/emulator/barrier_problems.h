#pragma once
#include <functional>
#include <string>
#include <vector>

/// Kernels on fixed inputs that are chosen so that a missing barrier shows in what they compute.
namespace shoal::emulator {

struct BarrierProblem {
  std::string name;
  /// Those whose absence must show, as "product.cuh:256".
  std::vector<std::string> barriers;
  /// Runs the kernel. The bytes of its results, or the first report of the emulated device.
  std::function<std::string()> run;
};

/// All of them, also for each type of weights and of the cache, because the types read block memory
/// in ways of their own. What has no problem here, and why:
/// - Barriers that keep a row's data until all have read them, before the next row: the kernels of
///   elementwise.cu come to a second row only beyond 65,535 rows.
/// - The __syncwarp of product.cuh and attention.cu: it brings the lanes together that a tensor
///   core needs together, and the emulated one waits for them anyway.
/// - The barrier of the push before its flags: only another rank that reads at that very moment
///   could see it. ThreadSanitizer does (tests/mutants/race_push_flag_before_its_data.patch).
std::vector<BarrierProblem> barrier_problems();

}  // namespace shoal::emulator
