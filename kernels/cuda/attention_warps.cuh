#pragma once
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_formats.cuh"
#include "kernels/cuda/machine.cuh"

/// Attention of many rows in bfloat16: each warp has pairs of its own and goes with them over all
/// chunks of keys, which the warps of a block share. Scores, weights and sums stay in registers, so
/// warps wait for each other only where keys and values come and go, as in FlashAttention-2 (Dao,
/// 2023). Each pair's operations and their order are those of attention_block.cuh and
/// attention_fold.cuh, and so are its bits.
namespace shoal::cuda {

/// The pairs of a warp in fragments of eight, and the most fragments of head_dim. The sums of a
/// large head leave registers for fewer pairs. kAtOnce: blocks that a multiprocessor must be able
/// to hold.
template <int PairFragments, int DimFragments, int AtOnce>
struct WarpShape {
  using Format = Bf16Attention;
  using Element = Format::Element;
  using Activation = Format::Activation;
  static constexpr int kPairFragments = PairFragments;
  static constexpr int kDimFragments = DimFragments;
  static constexpr int kAtOnce = AtOnce;
  static constexpr int kPairsOfWarp = 8 * PairFragments;
  static constexpr int kPairs = kAttentionWarps * kPairsOfWarp;
  static constexpr int kMostHeadDim = DimFragments * kHeadDimUnit;

  __host__ __device__ static constexpr int cache_stride(int head_dim) {
    return head_dim + kRowPiece<Element>;
  }
  __host__ __device__ static constexpr int q_stride(int head_dim) {
    return head_dim + kRowPiece<Activation>;
  }
  static constexpr size_t shared_bytes(int head_dim) {
    return static_cast<size_t>(2 * kChunkKeys * cache_stride(head_dim)) * sizeof(Element) +
           static_cast<size_t>(kPairs * q_stride(head_dim)) * sizeof(Activation) +
           kPairs * sizeof(Pair);
  }
  static_assert(shared_bytes(kMostHeadDim) <= kMostSharedBytes);
};

/// One warp and its pairs. A lane has two pairs of every fragment, which are the columns 2 (lane %
/// 4) and the next, and of these the keys lane / 4 and lane / 4 + 8 of every sixteen.
template <class Shape>
class WarpAttender {
  using Format = typename Shape::Format;
  static constexpr int kFragments = Shape::kPairFragments;
  /// Pairs of which this lane has scores.
  static constexpr int kColumns = 2 * kFragments;
  /// Groups of sixteen keys in a chunk.
  static constexpr int kTiles = kChunkKeys / kBlockTokens;

 public:
  __device__ WarpAttender(const ShoalAttention& args, const Work& work,
                          const OperandMemory<Shape>& memory)
      : args_(args), memory_(memory), head_dim_(row_elements(args.cache)) {
    const int rows_end = work.position + (work.end_pair - 1) / work.group;
    last_of_first_row_ = work.position + work.pair / work.group;
    first_of_last_row_ = first_key(args, rows_end);
  }

  /// scale * q.k of all keys of the chunk.
  __device__ void score(float scale) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores_[tile][f][i] = 0;
      }
    }
    const auto* const q_of_warp = memory_.q + warp() * Shape::kPairsOfWarp * memory_.q_stride;
#pragma unroll 2
    for (int i = 0; i < head_dim_; i += Format::kStep) {
      typename Format::template Pairs<kFragments> q;
      q.load(q_of_warp, memory_.q_stride, i);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Format::add_keys(scores_[tile], memory_.keys + tile * kBlockTokens * memory_.stride + i,
                         memory_.stride, q);
      }
    }
    for_scores([&](int tile, int f, int i) {
      scores_[tile][f][i] = __fmul_rn(scores_[tile][f][i], scale);
    });
  }

  /// Turns the scores of a chunk into weights, and folds their sums into those of the chunks before
  /// it.
  __device__ void weigh(int chunk) {
    is_inner_ = all_go_on(chunk);
    is_inner_ ? weigh_as<true>(chunk) : weigh_as<false>(chunk);
  }

  /// Folds P.V of the chunk into that of the chunks before it.
  __device__ void weigh_values() {
    is_inner_ ? weigh_values_as<true>() : weigh_values_as<false>();
  }

  /// Writes the outputs.
  __device__ void finish() const {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const Pair pair = pair_of(column);
      if (pair.row < 0) continue;
      auto* const to = static_cast<typename Shape::Activation*>(args_.out) +
                       pair.row * args_.out_stride + pair.head * args_.cache.head_dim;
#pragma unroll
      for (int d = 0; d < Shape::kDimFragments; ++d) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int dim = d * kHeadDimUnit + half * 8 + lane() / 4;
          const float value = out_[d][column / 2][column % 2 + 2 * half];
          if (dim < args_.cache.head_dim)
            store_global(to + dim, Format::rounded(__fdiv_rn(value, all_[column].sum)));
        }
      }
    }
  }

 private:
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }

  __device__ const Pair& pair_of(int column) const {
    return memory_
        .pairs[warp() * Shape::kPairsOfWarp + column / 2 * 8 + lane() % 4 * 2 + column % 2];
  }

  /// Whether every pair of the block sees the whole chunk, and has seen one before it. This is so
  /// for most chunks, and then nothing has to be asked for single keys and pairs. Places without a
  /// pair compute something that nobody reads.
  __device__ bool all_go_on(int chunk) const {
    return chunk > first_of_last_row_ / kChunkKeys &&
           chunk * kChunkKeys + kChunkKeys - 1 <= last_of_first_row_;
  }

  template <class Body>
  __device__ static void for_scores(const Body& body) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) body(tile, f, i);
      }
    }
  }

  template <bool kInner>
  __device__ void weigh_as(int chunk) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const KeyRange keys = kInner ? KeyRange{0, kChunkKeys} : keys_of(pair_of(column), chunk);
      const float max = greatest<kInner>(column, keys);
      const float sum = sum_of_weights<kInner>(column, keys, max);
      if (!kInner) note_chunk(column, chunk, keys);
      take_sum<kInner>(column, max, sum);
    }
    // A column of operand B is a pair, and of its rows, the keys, a lane has two neighbours.
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* const two = scores_[tile][f] + 2 * half;
          const uint32_t packed = Format::rounded(two[0]) | uint32_t{Format::rounded(two[1])} << 16;
          weights_[tile].value[f][half] = transposed(packed);
        }
      }
    }
  }

  /// The greatest score of a column's keys.
  template <bool kInner>
  __device__ float greatest(int column, const KeyRange& keys) const {
    float both[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = __uint_as_float(0xff800000);  // -infinity
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float x = score_of(tile, column, half);
        if ((kInner || keys.has(key_of(tile, half))) && !(max > x)) max = x;
      }
      both[half] = max;
    }
    float max = both[1] > both[0] ? both[1] : both[0];
#pragma unroll
    for (int apart = 16; apart > 2; apart /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, max, apart);
      max = other > max ? other : max;
    }
    return max;
  }

  /// Turns a column's scores into weights, of which those of unseen keys are exactly 0, and adds
  /// them in the order of sum_of_sixteen.
  template <bool kInner>
  __device__ float sum_of_weights(int column, const KeyRange& keys, float max) {
    float both[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float& score = scores_[tile][column / 2][column % 2 + 2 * half];
        const bool seen = kInner || keys.has(key_of(tile, half));
        x[tile] = seen ? Format::weight(exponential(__fadd_rn(score, -max))) : 0.0f;
        score = x[tile];
      }
      both[half] = __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3]));
    }
    float sum = __fadd_rn(both[0], both[1]);
#pragma unroll
    for (int apart = 16; apart > 2; apart /= 2)
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, apart));
    return sum;
  }

  __device__ float score_of(int tile, int column, int half) const {
    return scores_[tile][column / 2][column % 2 + 2 * half];
  }
  __device__ static int key_of(int tile, int half) {
    return tile * kBlockTokens + half * 8 + lane() / 4;
  }

  /// Remembers what a pair takes of the chunk.
  __device__ void note_chunk(int column, int chunk, const KeyRange& keys) {
    const uint32_t bit = 1U << column;
    const bool is_first = pair_of(column).first / kChunkKeys == chunk;
    nothing_ = keys.is_empty() ? nothing_ | bit : nothing_ & ~bit;
    first_ = is_first ? first_ | bit : first_ & ~bit;
  }
  template <bool kInner>
  __device__ bool takes_nothing(int column) const {
    return !kInner && (nothing_ >> column & 1) != 0;
  }
  template <bool kInner>
  __device__ bool takes_first(int column) const {
    return !kInner && (first_ >> column & 1) != 0;
  }

  /// As FoldInRegisters::take_sum.
  template <bool kInner>
  __device__ void take_sum(int column, float max, float sum) {
    Running& all = all_[column];
    if (takes_nothing<kInner>(column)) return;
    if (takes_first<kInner>(column)) {
      all = {max, sum, 0, 0};
      return;
    }
    const float merged = all.max > max ? all.max : max;
    const float old_scale = exponential(__fadd_rn(all.max, -merged));
    const float new_scale = exponential(__fadd_rn(max, -merged));
    all = {merged, __fmaf_rn(all.sum, old_scale, __fmul_rn(sum, new_scale)), old_scale, new_scale};
  }

  template <bool kInner>
  __device__ void weigh_values_as() {
#pragma unroll
    for (int d = 0; d < Shape::kDimFragments; ++d) {
      if (d * kHeadDimUnit >= head_dim_) break;
      float sums[kFragments][4] = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Format::add_values(sums,
                           memory_.values + tile * kBlockTokens * memory_.stride + d * kHeadDimUnit,
                           memory_.stride, weights_[tile]);
      }
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        if (takes_nothing<kInner>(column)) continue;
        const bool first = takes_first<kInner>(column);
        const Running& all = all_[column];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float value = sums[column / 2][column % 2 + 2 * half];
          float& out = out_[d][column / 2][column % 2 + 2 * half];
          out = first ? value : __fmaf_rn(out, all.old_scale, __fmul_rn(value, all.new_scale));
        }
      }
    }
  }

  const ShoalAttention& args_;
  const OperandMemory<Shape>& memory_;
  const int head_dim_;
  int last_of_first_row_, first_of_last_row_;  ///< the keys that all pairs see are between them
  bool is_inner_ = false;
  uint32_t nothing_ = 0, first_ = 0;     ///< pairs that see none of the chunk, and their first one
  float scores_[kTiles][kFragments][4];  ///< then the weights
  typename Format::template Pairs<kFragments> weights_[kTiles];
  Running all_[kColumns] = {};
  float out_[Shape::kDimFragments][kFragments][4] = {};
};

/// Goes over the chunks of the work. The keys of a chunk come while the values of the one before it
/// are multiplied, and its values while the keys are.
template <class Shape>
__device__ void attend_by_warps(const ShoalAttention& args, const Work& work) {
  const OperandMemory<Shape> memory(row_elements(args.cache));
  const AttentionLoader<Shape> loader(args, work, memory);
  ChunkTiles tiles = loader.begin();
  WarpAttender<Shape> attender(args, work, memory);
#pragma unroll 1
  for (int chunk = work.begin_chunk; chunk < work.end_chunk; ++chunk) {
    const bool more = chunk + 1 < work.end_chunk;
    if (more) tiles = loader.tiles_of(chunk + 1);
    copy_async_wait<1>();
    __syncthreads();  // the keys have come
    __syncwarp();     // lanes may have parted to load, and they have to multiply together
    attender.score(args.scale);
    __syncthreads();  // nobody reads the keys any more
    if (more) loader.load_keys(chunk + 1, tiles);
    copy_async_commit();
    __syncwarp();
    attender.weigh(chunk);
    copy_async_wait<1>();
    __syncthreads();  // the values have come
    __syncwarp();
    attender.weigh_values();
    __syncthreads();  // nobody reads the values any more
    if (more) loader.load_values(chunk + 1, tiles);
    copy_async_commit();
  }
  attender.finish();
}

}  // namespace shoal::cuda
