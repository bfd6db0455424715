// What a device's arithmetic gives, step by step: the tensor cores alone, and single operations as
// arithmetic.cuh uses them. A rank finds out by it which class of tensor cores its device has, and
// tests compare it with the host.
#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/host_checks.h"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kWords = 8;  ///< of a row of a factor
constexpr int kRows = 16, kColumns = 8;

/// One warp for each tile. The words of a fragment lie at the same places for both types: words
/// l % 4 and l % 4 + 4 of rows l / 4 and l / 4 + 8.
__global__ void __launch_bounds__(kLanes) tiles_kernel(const __grid_constant__ ShoalTiles args) {
  const auto lane = static_cast<int>(threadIdx.x), row = lane / 4, word = lane % 4;
  const auto tile = static_cast<int64_t>(blockIdx.x);
  const uint32_t* const of_a = args.a + tile * kRows * kWords;
  const uint32_t* const of_b = args.b + tile * kColumns * kWords;
  float* const of_sum = args.sum + tile * kRows * kColumns;
  uint32_t a[4], b[2];
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i] = load_global(of_a + (row + i % 2 * 8) * kWords + word + i / 2 * 4);
    sum[i] = load_global(of_sum + (row + i / 2 * 8) * kColumns + 2 * word + i % 2);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) b[i] = load_global(of_b + row * kWords + word + i * 4);
  if (args.type == kShoalBf16) {
    multiply_add(sum, a, b);
  } else {
    multiply_add_tf32(sum, a, b);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_global(of_sum + (row + i / 2 * 8) * kColumns + 2 * word + i % 2, sum[i]);
}

template <int kOperation>
__device__ uint32_t result_of(float x, float y, float z) {
  switch (kOperation) {
    case kShoalAdd:
      return __float_as_uint(__fadd_rn(x, y));
    case kShoalMultiply:
      return __float_as_uint(__fmul_rn(x, y));
    case kShoalFusedMultiplyAdd:
      return __float_as_uint(__fmaf_rn(x, y, z));
    case kShoalDivide:
      return __float_as_uint(__fdiv_rn(x, y));
    case kShoalSquareRoot:
      return __float_as_uint(__fsqrt_rn(x));
    case kShoalExponential:
      return __float_as_uint(exponential(x));
    case kShoalToBf16:
      return to_bf16(x);
    case kShoalToF16:
      return to_f16(x);
    case kShoalFromF16:
      return __float_as_uint(from_f16(static_cast<uint16_t>(__float_as_uint(x))));
    case kShoalToTf32:
      return to_tf32(x);
  }
  return 0;
}

constexpr int kThreads = 256;

template <int kOperation>
__global__ void __launch_bounds__(kThreads)
    operation_kernel(const __grid_constant__ ShoalOperation args) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.count;
       i += step) {
    const float x = load_global(args.x + i), y = load_global(args.y + i),
                z = load_global(args.z + i);
    store_global(args.out + i, result_of<kOperation>(x, y, z));
  }
}

/// By ShoalOperations.
using OperationKernel = void (*)(ShoalOperation);
constexpr OperationKernel kOperationKernels[] = {
    &operation_kernel<kShoalAdd>,
    &operation_kernel<kShoalMultiply>,
    &operation_kernel<kShoalFusedMultiplyAdd>,
    &operation_kernel<kShoalDivide>,
    &operation_kernel<kShoalSquareRoot>,
    &operation_kernel<kShoalExponential>,
    &operation_kernel<kShoalToBf16>,
    &operation_kernel<kShoalToF16>,
    &operation_kernel<kShoalFromF16>,
    &operation_kernel<kShoalToTf32>,
};
static_assert(sizeof(kOperationKernels) / sizeof(kOperationKernels[0]) == kShoalOperations);

}  // namespace

int32_t multiply_tiles(const ShoalTiles* args, void* stream) {
  if (!in_range(args->tiles, 0, kMostExtent)) return cudaErrorInvalidValue;
  if (args->type != kShoalBf16 && args->type != kShoalF16) return cudaErrorInvalidValue;
  if (args->tiles == 0) return cudaSuccess;
  if (!is_given(args->a, 4) || !is_given(args->b, 4) || !is_given(args->sum, 4))
    return cudaErrorInvalidValue;
  return launch(&tiles_kernel, args->tiles, kLanes, *args, stream);
}

int32_t operate(const ShoalOperation* args, void* stream) {
  if (!in_range(args->operation, 0, kShoalOperations - 1) || !in_range(args->count, 0, kMostExtent))
    return cudaErrorInvalidValue;
  if (args->count == 0) return cudaSuccess;
  if (!is_given(args->x, 4) || !is_given(args->y, 4) || !is_given(args->z, 4) ||
      !is_given(args->out, 4))
    return cudaErrorInvalidValue;
  constexpr int64_t kMostBlocks = 1024;
  return launch(kOperationKernels[args->operation],
                std::min(tiles(args->count, kThreads), kMostBlocks), kThreads, *args, stream);
}

/// operate() is for tests of a device, and its kernels are loaded when they are first launched.
int32_t load_arithmetic() {
  return load_kernel(&tiles_kernel);
}

}  // namespace shoal::cuda
