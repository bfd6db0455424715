// The ops that go over single elements, embedding and activation, and the greatest logit, with the
// CPU's bits.
#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/host_checks.h"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumnsOfThread = 4;
constexpr int kColumnsOfBlock = kThreads * kColumnsOfThread;
constexpr uint32_t kNan = 0x7fc00000;

/// Calls finish(row, column, load(row, column)) for this thread's part of the rows, of which
/// neighbouring threads take neighbouring columns. A thread loads all of its columns before it
/// finishes one, because otherwise each would cost the full latency of memory. Blocks: groups of
/// columns x rows.
template <class Load, class Finish>
__device__ void for_elements(int64_t rows, int64_t columns, const Load& load,
                             const Finish& finish) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumnsOfBlock + threadIdx.x;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    decltype(load(row, first)) loaded[kColumnsOfThread] = {};
#pragma unroll
    for (int i = 0; i < kColumnsOfThread; ++i) {
      const int64_t column = first + i * kThreads;
      if (column < columns) loaded[i] = load(row, column);
    }
#pragma unroll
    for (int i = 0; i < kColumnsOfThread; ++i) {
      const int64_t column = first + i * kThreads;
      if (column < columns) finish(row, column, loaded[i]);
    }
  }
}

template <class Args>
cudaError_t launch_elements(void (*kernel)(Args), int64_t rows, int64_t columns, const Args& args,
                            void* stream) {
  const Grid grid{tiles(columns, kColumnsOfBlock), std::min(rows, kMostBlocksY), 1};
  return launch_early(kernel, grid, kThreads, 0, args, stream);
}

__global__ void __launch_bounds__(kThreads) embed_kernel(const __grid_constant__ ShoalEmbed args) {
  await_earlier_kernels();
  for_elements(
      args.rows, args.hidden,
      [&](int64_t row, int64_t column) {
        const int32_t id = load_global(args.ids + row);
        if (id < 0 || id >= args.vocabulary) return __uint_as_float(kNan);
        return load_element(args.table, args.type, id * static_cast<int64_t>(args.hidden) + column);
      },
      [&](int64_t row, int64_t column, float value) {
        store_global(args.out + row * args.hidden + column, value);
      });
}

/// A column of both halves of a row, and of their biases, which are not added if there are none.
struct GateUp {
  float gate, up, gate_bias, up_bias;
};

__global__ void __launch_bounds__(kThreads)
    silu_mul_kernel(const __grid_constant__ ShoalSiluMul args) {
  let_next_kernel_begin();
  await_earlier_kernels();
  for_elements(
      args.rows, args.out_stride,
      [&](int64_t row, int64_t column) {
        GateUp x{};
        if (column >= args.cols) return x;
        const float* const from = args.gate_up + row * 2 * args.cols;
        x.gate = load_global(from + column);
        x.up = load_global(from + args.cols + column);
        if (args.bias == nullptr) return x;
        x.gate_bias = load_global(args.bias + column);
        x.up_bias = load_global(args.bias + args.cols + column);
        return x;
      },
      [&](int64_t row, int64_t column, const GateUp& x) {
        const bool biased = args.bias != nullptr;
        const float gate = biased ? __fadd_rn(x.gate, x.gate_bias) : x.gate;
        const float up = biased ? __fadd_rn(x.up, x.up_bias) : x.up;
        const float silu = __fdiv_rn(gate, __fadd_rn(1.0f, exponential(-gate)));
        // Columns behind the row are zeros.
        const float value = column < args.cols ? __fmul_rn(silu, up) : 0.0f;
        store_element(args.out, args.type, row * args.out_stride + column, value);
      });
}

/// One warp finds the best of what all threads have found.
constexpr unsigned kFinders = 32;
static_assert(kShoalArgmaxParts >= kFinders && kThreads >= kFinders);

/// The parts of a row that some thread block reads. More would have less work than their launch.
__host__ __device__ int64_t parts_of(int64_t columns) {
  constexpr int64_t kLeastColumns = 8 * kThreads, kMost = kShoalArgmaxParts;
  const int64_t parts = (columns + kLeastColumns - 1) / kLeastColumns;
  return parts < 1 ? 1 : parts < kMost ? parts : kMost;
}

/// Whether a is to be chosen before b. NaN is chosen before nothing, and nothing before it.
__device__ bool is_better(const ShoalBest& a, const ShoalBest& b) {
  return a.value > b.value || (a.value == b.value && a.column < b.column);
}

/// The best of what the threads of a block found; only thread 0 gets it. Every order gives the
/// same, because no two columns are equally good.
__device__ ShoalBest best_of_block(ShoalBest mine) {
  auto* const found = reinterpret_cast<ShoalBest*>(block_memory());
  const unsigned thread = threadIdx.x, threads = blockDim.x;
  __syncthreads();  // nobody still reads what is there from the row before
  found[thread] = mine;
  __syncthreads();
  if (thread >= kFinders) return mine;
  for (unsigned other = thread + kFinders; other < threads; other += kFinders) {
    if (is_better(found[other], mine)) mine = found[other];
  }
  found[thread] = mine;
  __syncwarp();
  if (thread > 0) return mine;
  for (unsigned other = 1; other < kFinders; ++other) {
    if (is_better(found[other], mine)) mine = found[other];
  }
  return mine;
}

__device__ ShoalBest nothing_found() {
  return {__uint_as_float(0xff800000), 0};  // -infinity
}

/// Blocks: parts of a row x rows. Part p has the columns from p * part_columns on.
__global__ void __launch_bounds__(kThreads)
    best_of_parts_kernel(const __grid_constant__ ShoalArgmax args) {
  await_earlier_kernels();
  const int64_t part_columns = (static_cast<int64_t>(args.cols) + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * part_columns;
  const int64_t end = begin + part_columns < args.cols ? begin + part_columns : args.cols;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const float* const from = args.logits + row * args.stride;
    ShoalBest best = nothing_found();
#pragma unroll 4
    for (int64_t column = begin + threadIdx.x; column < end; column += kThreads) {
      const float value = load_global(from + column);
      if (value > best.value) best = {value, static_cast<int32_t>(column)};
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) store_global(args.scratch + row * kShoalArgmaxParts + blockIdx.x, best);
  }
}

/// Blocks: rows. Threads: parts.
__global__ void __launch_bounds__(kShoalArgmaxParts)
    best_of_rows_kernel(const __grid_constant__ ShoalArgmax args) {
  await_earlier_kernels();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const auto part = static_cast<int>(threadIdx.x);
  ShoalBest best = nothing_found();
  if (part < parts_of(args.cols)) best = load_global(args.scratch + row * kShoalArgmaxParts + part);
  best = best_of_block(best);
  if (threadIdx.x == 0) store_global(args.best + row, best);
}

constexpr size_t kBestBytes = kThreads * sizeof(ShoalBest);

}  // namespace

int32_t embed(const ShoalEmbed* args, void* stream) {
  if (!is_extent(args->rows, args->hidden) || args->vocabulary < 0) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->hidden == 0) return cudaSuccess;
  if (!is_type(args->type) || !is_given(args->table, element_bytes(args->type)) ||
      !is_given(args->ids, 4) || !is_given(args->out, 4))
    return cudaErrorInvalidValue;
  return launch_elements(&embed_kernel, args->rows, args->hidden, *args, stream);
}

int32_t silu_mul(const ShoalSiluMul* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->cols == 0) return cudaSuccess;
  if (!in_range(args->out_stride, args->cols, kMostStride)) return cudaErrorInvalidValue;
  if (!is_given(args->gate_up, 4) || !is_given_or_null(args->bias, 4) ||
      !is_activation_type(args->type) || !is_given(args->out, element_bytes(args->type)))
    return cudaErrorInvalidValue;
  return launch_elements(&silu_mul_kernel, args->rows, args->out_stride, *args, stream);
}

int32_t argmax(const ShoalArgmax* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0) return cudaSuccess;
  if (!in_range(args->stride, args->cols, kMostStride)) return cudaErrorInvalidValue;
  if (!is_given(args->logits, 4) || !is_given(args->scratch, 8) || !is_given(args->best, 8))
    return cudaErrorInvalidValue;
  const Grid parts{parts_of(args->cols), std::min<int64_t>(args->rows, kMostBlocksY), 1};
  const cudaError_t error =
      launch_early(&best_of_parts_kernel, parts, kThreads, kBestBytes, *args, stream);
  if (error != cudaSuccess) return error;
  return launch_early(&best_of_rows_kernel, Grid{args->rows, 1, 1}, kShoalArgmaxParts, kBestBytes,
                      *args, stream);
}

int32_t load_elementwise() {
  const cudaError_t errors[] = {
      load_kernel(&embed_kernel),
      load_kernel(&silu_mul_kernel),
      load_kernel(&best_of_parts_kernel),
      load_kernel(&best_of_rows_kernel),
  };
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace shoal::cuda
