#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

/// The caller's arguments, and whether every plane and out may be moved a Pack at once.
struct AlignedSum {
  ShoalTreeSum sum;
  bool aligned;
};

/// Elements are independent of each other, so any launch shape gives the same bits.
__global__ void __launch_bounds__(kSumThreads)
    tree_sum_kernel(const __grid_constant__ AlignedSum args) {
  const ShoalTreeSum& sum = args.sum;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kSumThreads;
  int64_t group = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  for (; group * kGroup < sum.count; group += stride) {
    const Pack folded = fold(sum, [&](int value) {
      return load_group(sum.planes[value], group, sum.count, args.aligned);
    });
    store_group(sum.out, group, sum.count, args.aligned, folded);
  }
}

bool all_aligned(const ShoalTreeSum& sum) {
  return is_aligned(sum.out) && std::all_of(sum.planes, sum.planes + sum.values, is_aligned);
}

}  // namespace

int32_t tree_sum(const ShoalTreeSum* sum, void* stream) {
  if (!fold_is_valid(*sum)) return cudaErrorInvalidValue;
  if (sum->count == 0) return cudaSuccess;
  constexpr int64_t kPerBlock = int64_t{kSumThreads} * kGroup;
  const int64_t blocks = std::min<int64_t>(kSumBlocks, (sum->count + kPerBlock - 1) / kPerBlock);
  return launch(&tree_sum_kernel, blocks, kSumThreads, AlignedSum{*sum, all_aligned(*sum)}, stream);
}

int32_t load_tree_sum() {
  return load_kernel(&tree_sum_kernel);
}

}  // namespace shoal::cuda
