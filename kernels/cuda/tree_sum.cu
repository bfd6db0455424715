#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

/// Elements are independent of each other, so any launch shape and any W give the same bits.
template <int W>
__global__ void __launch_bounds__(kSumThreads)
    tree_sum_kernel(const __grid_constant__ ShoalTreeSum args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kSumThreads * W;
  int64_t at = (static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x) * W;
  for (; at < args.count; at += stride) {
    store<W>(args.out + at,
             fold<W>(args, [&](int value) { return load<W>(args.planes[value] + at); }));
  }
}

template <int W>
cudaError_t launch_sum(const ShoalTreeSum& sum, void* stream) {
  const int64_t per_block = static_cast<int64_t>(kSumThreads) * W;
  const int64_t blocks = std::min<int64_t>(kSumBlocks, (sum.count + per_block - 1) / per_block);
  return launch(&tree_sum_kernel<W>, blocks, kSumThreads, sum, stream);
}

bool all_aligned(const ShoalTreeSum& sum) {
  bool aligned = is_aligned(sum.out, sizeof(float4)) && sum.count % 4 == 0;
  for (int i = 0; i < sum.values; ++i)
    aligned = aligned && is_aligned(sum.planes[i], sizeof(float4));
  return aligned;
}

}  // namespace

int32_t tree_sum(const ShoalTreeSum* sum, void* stream) {
  if (!fold_is_valid(*sum)) return cudaErrorInvalidValue;
  if (sum->count == 0) return cudaSuccess;
  return all_aligned(*sum) ? launch_sum<4>(*sum, stream) : launch_sum<1>(*sum, stream);
}

int32_t load_tree_sum() {
  const cudaError_t wide = load_kernel(&tree_sum_kernel<4>);
  return wide != cudaSuccess ? wide : load_kernel(&tree_sum_kernel<1>);
}

}  // namespace shoal::cuda
