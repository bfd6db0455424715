#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/fold.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;  // the loop strides over the rest

/// Elements are independent of each other: any launch shape and any W give the same bits.
template <int W>
__global__ void __launch_bounds__(kThreads) tree_sum_kernel(const __grid_constant__ ShoalTreeSum args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * W;
  int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  for (; at < args.count; at += stride) {
    store<W>(args.out + at, fold<W>(args, [&](int value) { return load<W>(args.planes[value] + at); }));
  }
}

template <int W>
cudaError_t launch(const ShoalTreeSum& sum, cudaStream_t stream) {
  const int64_t per_block = static_cast<int64_t>(kThreads) * W;
  const int64_t blocks = std::min(kMostBlocks, (sum.count + per_block - 1) / per_block);
  ShoalTreeSum copy = sum;
  void* args[] = {&copy};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&tree_sum_kernel<W>), dim3(static_cast<unsigned>(blocks)),
                          dim3(kThreads), args, 0, stream);
}

bool all_aligned(const ShoalTreeSum& sum) {
  bool aligned = is_aligned(sum.out, sizeof(float4)) && sum.count % 4 == 0;
  for (int i = 0; i < sum.values; ++i) aligned = aligned && is_aligned(sum.planes[i], sizeof(float4));
  return aligned;
}

}  // namespace

int32_t tree_sum(const ShoalTreeSum* sum, void* stream) {
  if (!fold_is_valid(*sum)) return cudaErrorInvalidValue;
  if (sum->count == 0) return cudaSuccess;
  const auto on = static_cast<cudaStream_t>(stream);
  return all_aligned(*sum) ? launch<4>(*sum, on) : launch<1>(*sum, on);
}

int32_t load_tree_sum() {
  cudaFuncAttributes attributes;
  const cudaError_t wide = cudaFuncGetAttributes(&attributes, &tree_sum_kernel<4>);
  return wide != cudaSuccess ? wide : cudaFuncGetAttributes(&attributes, &tree_sum_kernel<1>);
}

}  // namespace shoal::cuda
