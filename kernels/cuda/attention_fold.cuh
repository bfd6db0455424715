#pragma once
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_block.cuh"
#include "kernels/cuda/machine.cuh"
#include "runtime/device/cuda_ops.h"

/// What becomes of the softmax and P.V of single chunks: they are folded from left to right, either
/// at once or from scratch memory. The first chunk of a row is taken as it is.
namespace shoal::cuda {

/// The maximum and the sum of a chunk, and its P.V, in scratch memory.
struct ChunkPlace {
  float* values;
  float* max_and_sum;
};
/// Number `chunk` of those that the row sees.
__device__ inline ChunkPlace chunk_place(const ShoalAttention& args, int64_t row, int head,
                                         int chunk) {
  const int64_t chunks = static_cast<int64_t>(args.step.rows) * args.heads * args.split_chunks;
  const int64_t at = (row * args.heads + head) * args.split_chunks + chunk;
  const int elements = row_elements(args.cache);
  return {args.scratch + at * elements, args.scratch + chunks * elements + at * 2};
}

/// What happens to a chunk's sums: they are folded into those of the chunks before it.
template <class Shape>
class FoldInRegisters {
 public:
  __device__ FoldInRegisters(const ShoalAttention& args, const AttentionMemory<Shape>& memory)
      : args_(args), memory_(memory) {}

  /// In one thread per pair.
  __device__ void take_sum(int chunk, int at, float max, float sum) const {
    Running& all = memory_.running[at];
    if (is_first(at, chunk)) {
      all = {max, sum, 0, 0};
      return;
    }
    const float merged = all.max > max ? all.max : max;
    const float old_scale = exponential(__fadd_rn(all.max, -merged));
    const float new_scale = exponential(__fadd_rn(max, -merged));
    all = {merged, __fmaf_rn(all.sum, old_scale, __fmul_rn(sum, new_scale)), old_scale, new_scale};
  }

  __device__ void take_values(int chunk, const Attender<Shape>& attender,
                              const Weighted<Shape>& sums) {
    attender.for_columns([&](int at, int f, int half) {
      if (keys_of(memory_.pair(at), chunk).is_empty()) return;
      const bool first = is_first(at, chunk);
      const Running all = memory_.running[at];
      attender.for_dims(half, [&](int, int d, int i) {
        const float value = Shape::Format::finished(sums.value[d][f][i]);
        float& out = out_.value[d][f][i];
        out = first ? value : __fmaf_rn(out, all.old_scale, __fmul_rn(value, all.new_scale));
      });
    });
  }

  __device__ void finish(const Attender<Shape>& attender) const {
    attender.for_columns([&](int at, int f, int half) {
      const Pair pair = memory_.pair(at);
      if (pair.row < 0) return;
      const float sum = memory_.running[at].sum;
      auto* const to = static_cast<typename Shape::Activation*>(args_.out) +
                       pair.row * args_.out_stride + pair.head * args_.cache.head_dim;
      attender.for_dims(half, [&](int dim, int d, int i) {
        if (dim < args_.cache.head_dim)
          store_global(to + dim, Shape::Format::rounded(__fdiv_rn(out_.value[d][f][i], sum)));
      });
    });
  }

 private:
  __device__ bool is_first(int at, int chunk) const {
    return memory_.pair(at).first / kChunkKeys == chunk;
  }

  const ShoalAttention& args_;
  const AttentionMemory<Shape>& memory_;
  Weighted<Shape> out_ = {};
};

/// Or they are left in scratch memory.
template <class Shape>
class LeaveInScratch {
 public:
  __device__ LeaveInScratch(const ShoalAttention& args, const AttentionMemory<Shape>& memory)
      : args_(args), memory_(memory) {}

  __device__ void take_sum(int chunk, int at, float max, float sum) const {
    if (!has_room(at, chunk)) return;
    float* const to = place(at, chunk).max_and_sum;
    store_global(to, max);
    store_global(to + 1, sum);
  }

  __device__ void take_values(int chunk, const Attender<Shape>& attender,
                              const Weighted<Shape>& sums) {
    attender.for_columns([&](int at, int f, int half) {
      if (keys_of(memory_.pair(at), chunk).is_empty() || !has_room(at, chunk)) return;
      float* const to = place(at, chunk).values;
      attender.for_dims(half, [&](int dim, int d, int i) {
        store_global(to + dim, Shape::Format::finished(sums.value[d][f][i]));
      });
    });
  }

  __device__ void finish(const Attender<Shape>&) const {}

 private:
  __device__ int number(int at, int chunk) const {
    return chunk - memory_.pair(at).first / kChunkKeys;
  }
  __device__ bool has_room(int at, int chunk) const {
    return number(at, chunk) < args_.split_chunks;
  }
  __device__ ChunkPlace place(int at, int chunk) const {
    const Pair& pair = memory_.pair(at);
    return chunk_place(args_, pair.row, pair.head, number(at, chunk));
  }

  const ShoalAttention& args_;
  const AttentionMemory<Shape>& memory_;
};

inline constexpr int kFoldThreads = 128;
/// Elements of a head that a thread folds.
inline constexpr int kFoldValues = kShoalMostHeadDim / kFoldThreads;

/// The scales of up to kFoldThreads chunks, which a block finds all at once, because the folds
/// themselves must follow each other.
struct FoldMemory {
  float max[kFoldThreads], sum[kFoldThreads], old_scale[kFoldThreads], new_scale[kFoldThreads];
};

/// Folds the chunks of one row and head.
class ChunkFold {
 public:
  __device__ ChunkFold(const ShoalAttention& args, int64_t row, int head)
      : args_(args), row_(row), head_(head) {}

  /// The next `count` chunks, beginning with number `first`.
  __device__ void take(int first, int count) {
    auto& memory = *reinterpret_cast<FoldMemory*>(block_memory());
    const auto thread = static_cast<int>(threadIdx.x);
    __syncthreads();  // nobody still reads the scales of the chunks before
    if (thread < count) {
      const float* const from = chunk_place(args_, row_, head_, first + thread).max_and_sum;
      memory.max[thread] = load_global(from);
      memory.sum[thread] = load_global(from + 1);
    }
    __syncthreads();
    // The maxima before and after this thread's chunk.
    float before = 0, after = 0;
    for (int i = 0; i < count; ++i) {
      const float merged = first + i > 0 && max_ > memory.max[i] ? max_ : memory.max[i];
      if (i == thread) before = max_, after = merged;
      max_ = merged;
    }
    if (thread < count) {
      memory.old_scale[thread] = exponential(__fadd_rn(before, -after));
      memory.new_scale[thread] = exponential(__fadd_rn(memory.max[thread], -after));
    }
    __syncthreads();
    fold(memory, first, count);
  }

  __device__ void finish() const {
    const int64_t to = row_ * args_.out_stride + head_ * args_.cache.head_dim;
#pragma unroll
    for (int i = 0; i < kFoldValues; ++i) {
      const int dim = static_cast<int>(threadIdx.x) + i * kFoldThreads;
      if (dim < args_.cache.head_dim)
        store_element(args_.out, activation_type(args_.cache.type), to + dim,
                      __fdiv_rn(out_[i], sum_));
    }
  }

  __device__ void become_nan() {
    sum_ = __uint_as_float(0x7fc00000);
  }

 private:
  __device__ void fold(const FoldMemory& memory, int first, int count) {
    const int dim = static_cast<int>(threadIdx.x);
    const float* values = chunk_place(args_, row_, head_, first).values + dim;
#pragma unroll 4
    for (int chunk = 0; chunk < count; ++chunk, values += row_elements(args_.cache)) {
      const bool is_first = first + chunk == 0;
      const float old_scale = memory.old_scale[chunk], new_scale = memory.new_scale[chunk];
      const auto folded = [&](float all, float next) {
        return is_first ? next : __fmaf_rn(all, old_scale, __fmul_rn(next, new_scale));
      };
      sum_ = folded(sum_, memory.sum[chunk]);
#pragma unroll
      for (int i = 0; i < kFoldValues; ++i) {
        if (dim + i * kFoldThreads < args_.cache.head_dim)
          out_[i] = folded(out_[i], load_global(values + i * kFoldThreads));
      }
    }
  }

  const ShoalAttention& args_;
  const int64_t row_;
  const int head_;
  float max_ = 0, sum_ = 0;
  float out_[kFoldValues] = {};
};

}  // namespace shoal::cuda
