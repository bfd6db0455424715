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

/// From the first column of a thread's group to that of its next one. A row has one block, of
/// kNormThreads.
constexpr int kNormStep = kNormThreads * kGroup;

/// Calls body(column, i) for up to kGroups of this thread's groups of a row, of which the first one
/// begins at column `first`.
template <int kGroups, class Body>
__device__ void for_groups(int first, int columns, const Body& body) {
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int column = first + i * kNormStep;
    if (column < columns) body(column, i);
  }
}
__device__ int first_group() {
  return static_cast<int>(threadIdx.x) * kGroup;
}

/// A row of floats in device memory, and whether its groups can be moved as a whole.
struct GlobalRow {
  float* floats;
  int columns;
  bool aligned;

  __device__ GlobalRow(const float* of, int row_columns)
      : floats(const_cast<float*>(of)), columns(row_columns), aligned(is_aligned(of)) {}
  __device__ Pack load(int column) const {
    return load_group(floats, column / kGroup, columns, aligned);
  }
  __device__ void store(int column, const Pack& value) const {
    store_group(floats, column / kGroup, columns, aligned, value);
  }
};

__host__ __device__ int whole_groups(int columns) {
  return (columns + kGroup - 1) / kGroup * kGroup;
}
/// The block's row in its memory, and kSumLanes sums behind it.
struct NormRow {
  float* x;
  float* sums;

  __device__ explicit NormRow(int columns)
      : x(reinterpret_cast<float*>(block_memory())), sums(x + whole_groups(columns)) {}
  /// The group that begins at this column. Past the last column it holds anything.
  __device__ Pack& group(int column) const { return *reinterpret_cast<Pack*>(x + column); }
};

/// As many rounded activations as a group has.
struct alignas(sizeof(uint16_t) * kGroup) PackOf16 {
  uint16_t lane[kGroup];
};

/// Writes the first `count` of a group to out, from element `at` on, rounded to its type.
__device__ void store_rounded(void* out, int32_t type, int64_t at, int count, const Pack& value) {
  auto* const halves = static_cast<uint16_t*>(out) + at;
  if (type == kShoalBf16 && count >= kGroup &&
      reinterpret_cast<uintptr_t>(halves) % alignof(PackOf16) == 0) {
    PackOf16 rounded;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) rounded.lane[i] = to_bf16(value.lane[i]);
    store_global(reinterpret_cast<PackOf16*>(halves), rounded);
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (i < count) store_element(out, type, at + i, value.lane[i]);
  }
}

/// Normalizes the block's row, which its threads have put into block memory. Args: ShoalRmsNorm or
/// ShoalAddNorm. kGroups: how many a thread loads at once.
template <int kGroups, class Args>
__device__ void normalize_row(const Args& args, const NormRow& row) {
  const auto thread = static_cast<int>(threadIdx.x);
  const GlobalRow weight(args.weight, args.cols);
  Pack weights[kGroups] = {};  // the first ones come while the row is summed
  for_groups<kGroups>(first_group(), args.cols,
                      [&](int column, int i) { weights[i] = weight.load(column); });
  __syncthreads();
  if (thread < kSumLanes) {
    float sum = 0;
#pragma unroll 8
    for (int i = thread; i < args.cols; i += kSumLanes) sum = __fmaf_rn(row.x[i], row.x[i], sum);
    row.sums[thread] = sum;
  }
  __syncthreads();
  const float scale = inverse_rms(sum_of_lanes(row.sums), args.cols, args.eps);
  const int64_t to = static_cast<int64_t>(blockIdx.x) * args.out_stride;
  for (int first = first_group(); first < args.cols; first += kGroups * kNormStep) {
    for_groups<kGroups>(first, args.cols, [&](int column, int i) {
      if (first > first_group()) weights[i] = weight.load(column);
    });
    for_groups<kGroups>(first, args.cols, [&](int column, int i) {
      Pack value = row.group(column);
#pragma unroll
      for (int k = 0; k < kGroup; ++k)
        value.lane[k] = __fmul_rn(__fmul_rn(value.lane[k], scale), weights[i].lane[k]);
      store_rounded(args.out, args.type, to + column, args.cols - column, value);
    });
  }
  for (int64_t i = args.cols + thread; i < args.out_stride; i += kNormThreads)
    store_element(args.out, args.type, to + i, 0);
}

/// Groups that a thread loads at once, in a norm that folds nothing.
constexpr int kPlainGroups = 2;

/// Blocks: rows.
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_kernel(const __grid_constant__ ShoalRmsNorm args) {
  let_next_kernel_begin();
  await_earlier_kernels();
  const NormRow row(args.cols);
  // All threads load, so that much of the row is under way at once, and then few of them sum.
  const GlobalRow from(args.x + static_cast<int64_t>(blockIdx.x) * args.cols, args.cols);
  for (int first = first_group(); first < args.cols; first += kPlainGroups * kNormStep) {
    Pack loaded[kPlainGroups] = {};
    for_groups<kPlainGroups>(first, args.cols,
                             [&](int column, int i) { loaded[i] = from.load(column); });
    for_groups<kPlainGroups>(first, args.cols,
                             [&](int column, int i) { row.group(column) = loaded[i]; });
  }
  normalize_row<kPlainGroups>(args, row);
}

// How the leaves of a product's sum fold: kMost is how many there may be, and kGroups how many
// groups a thread loads at once. Only AnyLeaves may have fewer leaves than kMost.

/// The sum itself: there is nothing to fold.
struct OneLeaf {
  static constexpr int kMost = 1, kGroups = kPlainGroups;
  static bool fits(const ShoalAddNorm& args) { return args.leaves == 1; }
  __device__ static Pack folded(const ShoalAddNorm& /*args*/, const Pack (&leaf)[kMost]) {
    return leaf[0];
  }
};

/// A balanced tree over eight leaves, as most models have. Its order is known to the compiler, so
/// no values move on a stack, which took longer than the sums themselves in a step of one token.
struct EightLeaves {
  static constexpr int kMost = 8, kGroups = 2;
  static bool fits(const ShoalAddNorm& args) {
    constexpr int32_t kBalanced[kMost] = {0, 1, 0, 2, 0, 1, 0, 3};
    bool fits = args.leaves == kMost;
    for (int leaf = 0; leaf < kMost; ++leaf) fits = fits && args.merges[leaf] == kBalanced[leaf];
    return fits;
  }
  __device__ static Pack folded(const ShoalAddNorm& /*args*/, const Pack (&leaf)[kMost]) {
    return add(add(add(leaf[0], leaf[1]), add(leaf[2], leaf[3])),
               add(add(leaf[4], leaf[5]), add(leaf[6], leaf[7])));
  }
};

/// Any program.
struct AnyLeaves {
  static constexpr int kMost = kShoalMostLeaves, kGroups = 1;
  __device__ static Pack folded(const ShoalAddNorm& args, const Pack (&leaf)[kMost]) {
    Stack<Pack> stack;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= args.leaves) break;
      stack.push(leaf[i]);
      for (int merges = args.merges[i]; merges > 0; --merges) stack.merge();
    }
    return stack.top();
  }
};

/// Adds the sum to the residual in some of this thread's groups, and puts them into block memory.
/// Everything is
/// loaded at once, because otherwise each plane of each group would cost the full latency of
/// memory.
template <class Leaves>
__device__ void add_groups(const ShoalAddNorm& args, int first, const NormRow& row) {
  const int64_t plane = static_cast<int64_t>(args.rows) * args.cols;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * args.cols;
  const GlobalRow residual(args.residual + at, args.cols), bias(args.bias, args.cols);
  Pack leaves[Leaves::kGroups][Leaves::kMost] = {}, loaded[Leaves::kGroups] = {};
  Pack biases[Leaves::kGroups] = {};
  for_groups<Leaves::kGroups>(first, args.cols, [&](int column, int i) {
#pragma unroll
    for (int leaf = 0; leaf < Leaves::kMost; ++leaf) {
      const GlobalRow sums(args.sums + leaf * plane + at, args.cols);
      if (leaf < args.leaves) leaves[i][leaf] = sums.load(column);
    }
    loaded[i] = residual.load(column);
    if (args.bias != nullptr) biases[i] = bias.load(column);
  });
  for_groups<Leaves::kGroups>(first, args.cols, [&](int column, int i) {
    Pack sum = Leaves::folded(args, leaves[i]);
    if (args.bias != nullptr) sum = add(sum, biases[i]);
    const Pack added = add(loaded[i], sum);
    row.group(column) = added;
    residual.store(column, added);
  });
}

/// Blocks: rows.
template <class Leaves>
__global__ void __launch_bounds__(kNormThreads)
    add_norm_kernel(const __grid_constant__ ShoalAddNorm args) {
  let_next_kernel_begin();
  await_earlier_kernels();
  if (args.progress != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
    store_word(args.progress, args.mark);
  const NormRow row(args.cols);
  for (int first = first_group(); first < args.cols; first += Leaves::kGroups * kNormStep)
    add_groups<Leaves>(args, first, row);
  if (args.weight != nullptr) normalize_row<Leaves::kGroups>(args, row);
}

/// A row of floats and its sums must fit into block memory.
constexpr int64_t kMostNormColumns = 24 * 1024;
static_assert((kMostNormColumns + kSumLanes) * sizeof(float) <= kMostSharedBytes);
static_assert(kMostNormColumns % kGroup == 0);

size_t norm_bytes(int32_t cols) {
  return (static_cast<size_t>(whole_groups(cols)) + kSumLanes) * sizeof(float);
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

template <class Args>
cudaError_t launch_rows(void (*kernel)(Args), const Args& args, void* stream) {
  return launch_early(kernel, Grid{args.rows, 1, 1}, kNormThreads, norm_bytes(args.cols), args,
                      stream);
}

}  // namespace

int32_t rms_norm(const ShoalRmsNorm* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->cols == 0) return cudaSuccess;
  if (args->cols > kMostNormColumns || !is_given(args->x, 4) || !norm_is_valid(*args))
    return cudaErrorInvalidValue;
  return launch_rows(&rms_norm_kernel, *args, stream);
}

int32_t add_norm(const ShoalAddNorm* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->cols == 0) return cudaSuccess;
  if (args->cols > kMostNormColumns || !fold_is_valid(*args) || !is_given(args->residual, 4) ||
      !is_given(args->sums, 4) || !is_given_or_null(args->bias, 4) ||
      !is_given_or_null(args->progress, 4))
    return cudaErrorInvalidValue;
  if (args->weight != nullptr && !norm_is_valid(*args)) return cudaErrorInvalidValue;
  if (OneLeaf::fits(*args)) return launch_rows(&add_norm_kernel<OneLeaf>, *args, stream);
  if (EightLeaves::fits(*args)) return launch_rows(&add_norm_kernel<EightLeaves>, *args, stream);
  return launch_rows(&add_norm_kernel<AnyLeaves>, *args, stream);
}

int32_t load_norms() {
  const cudaError_t errors[] = {
      load_kernel(&rms_norm_kernel, kMostSharedBytes),
      load_kernel(&add_norm_kernel<OneLeaf>, kMostSharedBytes),
      load_kernel(&add_norm_kernel<EightLeaves>, kMostSharedBytes),
      load_kernel(&add_norm_kernel<AnyLeaves>, kMostSharedBytes),
  };
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace shoal::cuda
