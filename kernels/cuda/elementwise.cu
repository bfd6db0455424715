// Embedding and activation, which go over groups of columns, and the greatest logit, with the CPU's
// bits.
#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/host_checks.h"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

constexpr int kArgmaxThreads = 256;
/// A block of for_groups. Two of its threads' groups are 1024 columns, so that a step of one token
/// is spread over many multiprocessors.
constexpr int kGroupThreads = 128;
/// The groups of kWidth neighbouring columns that a thread of for_groups has of a row.
template <int kWidth>
constexpr int kGroupsOfThread = kWidth == 1 ? 4 : 2;
constexpr uint32_t kNan = 0x7fc00000;

/// Calls finish(group, load(group)) for this thread's groups of a row, of which neighbouring
/// threads take neighbouring ones. A thread loads all of its groups before it finishes one, because
/// otherwise each would cost the full latency of memory. For groups that do not exist it loads the
/// last one, so that no load waits behind a branch, and does not finish it. `columns` must be a
/// multiple of kWidth. blockIdx.x counts groups, and blockIdx.y counts rows.
template <int kWidth, class Load, class Finish>
__device__ void for_groups(int columns, const Load& load, const Finish& finish) {
  constexpr int kGroups = kGroupsOfThread<kWidth>;
  const auto first = static_cast<int>(blockIdx.x * kGroups * kGroupThreads + threadIdx.x);
  const int groups = columns / kWidth;
  decltype(load(first)) loaded[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int group = first + i * kGroupThreads;
    loaded[i] = load(group < groups ? group : groups - 1);
  }
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int group = first + i * kGroupThreads;
    if (group < groups) finish(group, loaded[i]);
  }
}

template <int kWidth, class Args>
cudaError_t launch_groups(void (*kernel)(Args), int64_t rows, int64_t columns, const Args& args,
                          void* stream) {
  constexpr int kColumnsOfBlock = kGroupsOfThread<kWidth> * kGroupThreads * kWidth;
  const Grid grid{tiles(columns, kColumnsOfBlock), std::min(rows, kMostBlocksY), 1};
  return launch_early(kernel, grid, kGroupThreads, 0, args, stream);
}

template <int kWidth>
__global__ void __launch_bounds__(kGroupThreads)
    embed_kernel(const __grid_constant__ ShoalEmbed args) {
  await_earlier_kernels();
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const int32_t id = load_global(args.ids + row);
    const int64_t from = int64_t{id} * args.hidden;
    const auto store = [&](int group, const Floats<kWidth>& value) {
      store_floats<kWidth>(args.out + row * args.hidden, group, value);
    };
    if (id < 0 || id >= args.vocabulary) {
      Floats<kWidth> nan;
      for (float& value : nan.lane) value = __uint_as_float(kNan);
      for_groups<kWidth>(
          args.hidden, [&](int /*group*/) { return nan; }, store);
    } else if (args.type == kShoalF32) {
      const float* const floats = static_cast<const float*>(args.table) + from;
      for_groups<kWidth>(
          args.hidden, [&](int group) { return load_floats<kWidth>(floats, group); }, store);
    } else {
      const uint16_t* const halves = static_cast<const uint16_t*>(args.table) + from;
      for_groups<kWidth>(
          args.hidden, [&](int group) { return load_halves<kWidth>(halves, group); },
          [&](int group, Halves<kWidth> value) {
            store(group, widened<kWidth>(value, args.type));
          });
    }
  }
}

/// A group of columns of both halves of a row.
template <int kWidth>
struct GateUp {
  Floats<kWidth> gate, up;
};

template <int kWidth>
__device__ void add_to(Floats<kWidth>& sum, const Floats<kWidth>& value) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum.lane[i] = __fadd_rn(sum.lane[i], value.lane[i]);
}

template <int kWidth>
__device__ Floats<kWidth> silu_mul_of(const GateUp<kWidth>& x) {
  Floats<kWidth> denominator, value;
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    denominator.lane[i] = __fadd_rn(1.0f, exponential(-x.gate.lane[i]));
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float silu = __fdiv_rn(x.gate.lane[i], denominator.lane[i]);
    value.lane[i] = __fmul_rn(silu, x.up.lane[i]);
  }
  return value;
}

template <int kWidth>
__global__ void __launch_bounds__(kGroupThreads)
    silu_mul_kernel(const __grid_constant__ ShoalSiluMul args) {
  let_next_kernel_begin();
  await_earlier_kernels();
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const float* const gate = args.gate_up + row * 2 * args.cols;
    const int64_t to = row * args.out_stride;
    for_groups<kWidth>(
        args.cols,
        [&](int group) {
          return GateUp<kWidth>{load_floats<kWidth>(gate, group),
                                load_floats<kWidth>(gate + args.cols, group)};
        },
        [&](int group, GateUp<kWidth> x) {
          if (args.bias != nullptr) {  // not loaded ahead: it is rare, and a cache has it
            add_to(x.gate, load_floats<kWidth>(args.bias, group));
            add_to(x.up, load_floats<kWidth>(args.bias + args.cols, group));
          }
          store_elements<kWidth>(args.out, args.type, to, group, silu_mul_of(x));
        });
    if (blockIdx.x > 0) continue;
    for (int64_t i = args.cols + int64_t{threadIdx.x}; i < args.out_stride; i += kGroupThreads)
      store_element(args.out, args.type, to + i, 0);
  }
}

/// One warp finds the best of what all threads have found.
constexpr unsigned kFinders = 32;
static_assert(kShoalArgmaxParts >= kFinders && kArgmaxThreads >= kFinders);

/// The parts of a row that some thread block reads. More would have less work than their launch.
__host__ __device__ int64_t parts_of(int64_t columns) {
  constexpr int64_t kLeastColumns = 8 * kArgmaxThreads, kMost = kShoalArgmaxParts;
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
__global__ void __launch_bounds__(kArgmaxThreads)
    best_of_parts_kernel(const __grid_constant__ ShoalArgmax args) {
  await_earlier_kernels();
  const int64_t part_columns = (static_cast<int64_t>(args.cols) + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * part_columns;
  const int64_t end = begin + part_columns < args.cols ? begin + part_columns : args.cols;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const float* const from = args.logits + row * args.stride;
    ShoalBest best = nothing_found();
#pragma unroll 4
    for (int64_t column = begin + threadIdx.x; column < end; column += kArgmaxThreads) {
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

constexpr size_t kBestBytes = kArgmaxThreads * sizeof(ShoalBest);

}  // namespace

int32_t embed(const ShoalEmbed* args, void* stream) {
  if (!is_extent(args->rows, args->hidden) || args->vocabulary < 0) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->hidden == 0) return cudaSuccess;
  if (!is_type(args->type) || !is_given(args->table, element_bytes(args->type)) ||
      !is_given(args->ids, 4) || !is_given(args->out, 4))
    return cudaErrorInvalidValue;
  const bool wide =
      args->hidden % kWide == 0 && is_wide(args->table, args->type) && is_wide(args->out);
  return wide ? launch_groups<kWide>(&embed_kernel<kWide>, args->rows, args->hidden, *args, stream)
              : launch_groups<1>(&embed_kernel<1>, args->rows, args->hidden, *args, stream);
}

int32_t silu_mul(const ShoalSiluMul* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0 || args->cols == 0) return cudaSuccess;
  if (!in_range(args->out_stride, args->cols, kMostStride)) return cudaErrorInvalidValue;
  if (!is_given(args->gate_up, 4) || !is_given_or_null(args->bias, 4) ||
      !is_activation_type(args->type) || !is_given(args->out, element_bytes(args->type)))
    return cudaErrorInvalidValue;
  const bool wide = args->cols % kWide == 0 && args->out_stride % kWide == 0 &&
                    is_wide(args->gate_up) && is_wide(args->bias) && is_wide(args->out, args->type);
  return wide ? launch_groups<kWide>(&silu_mul_kernel<kWide>, args->rows, args->cols, *args, stream)
              : launch_groups<1>(&silu_mul_kernel<1>, args->rows, args->cols, *args, stream);
}

int32_t argmax(const ShoalArgmax* args, void* stream) {
  if (!is_extent(args->rows, args->cols)) return cudaErrorInvalidValue;
  if (args->rows == 0) return cudaSuccess;
  if (!in_range(args->stride, args->cols, kMostStride)) return cudaErrorInvalidValue;
  if (!is_given(args->logits, 4) || !is_given(args->scratch, 8) || !is_given(args->best, 8))
    return cudaErrorInvalidValue;
  const Grid parts{parts_of(args->cols), std::min<int64_t>(args->rows, kMostBlocksY), 1};
  const cudaError_t error =
      launch_early(&best_of_parts_kernel, parts, kArgmaxThreads, kBestBytes, *args, stream);
  if (error != cudaSuccess) return error;
  return launch_early(&best_of_rows_kernel, Grid{args->rows, 1, 1}, kShoalArgmaxParts, kBestBytes,
                      *args, stream);
}

int32_t load_elementwise() {
  const cudaError_t errors[] = {
      load_kernel(&embed_kernel<kWide>),    load_kernel(&embed_kernel<1>),
      load_kernel(&silu_mul_kernel<kWide>), load_kernel(&silu_mul_kernel<1>),
      load_kernel(&best_of_parts_kernel),   load_kernel(&best_of_rows_kernel),
  };
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace shoal::cuda
