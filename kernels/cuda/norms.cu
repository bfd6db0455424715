// The norms of rows, of which one adds a sum to the residual first. Their sums have the order of
// kernels/cpu, so the bits are the CPU's.
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/host_checks.h"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

/// Columns that a thread of a norm loads at once.
constexpr int kNormColumns = 8;
/// How far it is from a thread's columns to its next ones.
constexpr int kNormStep = kNormThreads * kNormColumns;

/// Calls body(column, i) for up to kNormColumns of this thread's columns of a row, of which the
/// first is `first`. Every row has a block of kNormThreads.
template <class Body>
__device__ void for_columns(int first, int columns, const Body& body) {
#pragma unroll
  for (int i = 0; i < kNormColumns; ++i) {
    const int column = first + i * kNormThreads;
    if (column < columns) body(column, i);
  }
}

/// Some of a norm's weights.
struct NormWeights {
  float value[kNormColumns] = {};

  __device__ void load(const float* from, int first, int columns) {
    for_columns(first, columns, [&](int column, int i) { value[i] = load_global(from + column); });
  }
};

/// Normalizes the block's row, which its threads have put into block memory, before kSumLanes sums.
/// Args: ShoalRmsNorm or ShoalAddNorm.
template <class Args>
__device__ void normalize_row(const Args& args, const float* x, float* sums) {
  const auto thread = static_cast<int>(threadIdx.x);
  NormWeights weights;  // they come while the row is summed
  weights.load(args.weight, thread, args.cols);
  __syncthreads();
  if (thread < kSumLanes) {
    float sum = 0;
#pragma unroll 8
    for (int i = thread; i < args.cols; i += kSumLanes) sum = __fmaf_rn(x[i], x[i], sum);
    sums[thread] = sum;
  }
  __syncthreads();
  const float scale = inverse_rms(sum_of_lanes(sums), args.cols, args.eps);
  const int64_t to = static_cast<int64_t>(blockIdx.x) * args.out_stride;
  for (int first = thread; first < args.cols; first += kNormStep) {
    if (first > thread) weights.load(args.weight, first, args.cols);
    for_columns(first, args.cols, [&](int column, int i) {
      store_element(args.out, args.type, to + column,
                    __fmul_rn(__fmul_rn(x[column], scale), weights.value[i]));
    });
  }
  for (int64_t i = args.cols + thread; i < args.out_stride; i += kNormThreads)
    store_element(args.out, args.type, to + i, 0);
}

/// Blocks: rows.
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_kernel(const __grid_constant__ ShoalRmsNorm args) {
  auto* const x = reinterpret_cast<float*>(block_memory());
  // All threads load, so that much of the row is under way at once, and then few of them sum.
  const float* const from = args.x + static_cast<int64_t>(blockIdx.x) * args.cols;
  for (int first = static_cast<int>(threadIdx.x); first < args.cols; first += kNormStep) {
    float loaded[kNormColumns] = {};
    for_columns(first, args.cols,
                [&](int column, int i) { loaded[i] = load_global(from + column); });
    for_columns(first, args.cols, [&](int column, int i) { x[column] = loaded[i]; });
  }
  normalize_row(args, x, x + args.cols);
}

/// The leaves' sums of one element, which is number `at` of each plane.
struct LeafSums {
  float value[kShoalMostLeaves];

  __device__ void load(const ShoalAddNorm& args, int64_t at) {
    const int64_t plane = static_cast<int64_t>(args.rows) * args.cols;
#pragma unroll
    for (int leaf = 0; leaf < kShoalMostLeaves; ++leaf)
      value[leaf] = leaf < args.leaves ? load_global(args.sums + leaf * plane + at) : 0.0f;
  }

  __device__ float folded(const ShoalAddNorm& args) const {
    Stack<float> stack;
#pragma unroll
    for (int leaf = 0; leaf < kShoalMostLeaves; ++leaf) {
      if (leaf >= args.leaves) break;
      stack.push(value[leaf]);
      for (int merges = args.merges[leaf]; merges > 0; --merges) stack.merge();
    }
    return stack.top();
  }
};

/// Adds up to kNormColumns of this thread's columns to the residual and puts them into block
/// memory. Everything is loaded at once, because otherwise each plane of each column would cost the
/// full latency of memory.
__device__ void add_columns(const ShoalAddNorm& args, int first, float* x) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * args.cols;
  LeafSums sums[kNormColumns];
  float residual[kNormColumns] = {}, bias[kNormColumns] = {};
  for_columns(first, args.cols, [&](int column, int i) {
    sums[i].load(args, row + column);
    residual[i] = load_global(args.residual + row + column);
    if (args.bias != nullptr) bias[i] = load_global(args.bias + column);
  });
  for_columns(first, args.cols, [&](int column, int i) {
    const float sum = sums[i].folded(args);
    x[column] = __fadd_rn(residual[i], args.bias == nullptr ? sum : __fadd_rn(sum, bias[i]));
    store_global(args.residual + row + column, x[column]);
  });
}

/// Blocks: rows.
__global__ void __launch_bounds__(kNormThreads)
    add_norm_kernel(const __grid_constant__ ShoalAddNorm args) {
  if (args.progress != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
    store_word(args.progress, args.mark);
  auto* const x = reinterpret_cast<float*>(block_memory());
  for (int first = static_cast<int>(threadIdx.x); first < args.cols; first += kNormStep)
    add_columns(args, first, x);
  if (args.weight != nullptr) normalize_row(args, x, x + args.cols);
}

/// A row of floats and its sums must fit into block memory.
constexpr int64_t kMostNormColumns = 24 * 1024;
static_assert((kMostNormColumns + kSumLanes) * sizeof(float) <= kMostSharedBytes);
size_t norm_bytes(int32_t cols) {
  return (static_cast<size_t>(cols) + kSumLanes) * sizeof(float);
}

/// A norm that writes somewhere. Args: ShoalRmsNorm or ShoalAddNorm.
template <class Args>
bool norm_is_valid(const Args& args) {
  return in_range(args.out_stride, args.cols, kMostStride) && is_given(args.weight, 4) &&
         is_activation_type(args.type) && is_given(args.out, element_bytes(args.type));
}

/// Whether the leaves fold into one value.
bool fold_is_valid(const ShoalAddNorm& args) {
  if (!in_range(args.leaves, 1, kShoalMostLeaves)) return false;
  int depth = 0;
  for (int leaf = 0; leaf < args.leaves; ++leaf) {
    if (!in_range(args.merges[leaf], 0, depth)) return false;
    depth += 1 - args.merges[leaf];
  }
  return depth == 1;
}

}  // namespace

int32_t rms_norm(const ShoalRmsNorm* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->cols == 0) return cudaSuccess;
  if (args->cols > kMostNormColumns || !is_given(args->x, 4) || !norm_is_valid(*args))
    return cudaErrorInvalidValue;
  return launch(&rms_norm_kernel, Grid{args->rows, 1, 1}, kNormThreads, norm_bytes(args->cols),
                *args, stream);
}

int32_t add_norm(const ShoalAddNorm* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->cols == 0) return cudaSuccess;
  if (args->cols > kMostNormColumns || !fold_is_valid(*args) || !is_given(args->residual, 4) ||
      !is_given(args->sums, 4) || !is_given_or_null(args->bias, 4) ||
      !is_given_or_null(args->progress, 4))
    return cudaErrorInvalidValue;
  if (args->weight != nullptr && !norm_is_valid(*args)) return cudaErrorInvalidValue;
  return launch(&add_norm_kernel, Grid{args->rows, 1, 1}, kNormThreads, norm_bytes(args->cols),
                *args, stream);
}

int32_t load_norms() {
  const cudaError_t error = load_kernel(&rms_norm_kernel, kMostSharedBytes);
  return error != cudaSuccess ? error : load_kernel(&add_norm_kernel, kMostSharedBytes);
}

}  // namespace shoal::cuda
