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
/// warps wait for each other twice a chunk, where keys and values come, as in FlashAttention-2
/// (Dao, 2023). Each pair's operations and their order are those of attention_block.cuh and
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
           static_cast<size_t>(kPairs * q_stride(head_dim)) * sizeof(Activation);
  }
  static_assert(shared_bytes(kMostHeadDim) <= kMostSharedBytes);
};

/// One warp and its pairs. A lane has two pairs of every fragment, which are the columns 2 (lane %
/// 4) and the next. Of these it has the scores of keys lane / 4 and lane / 4 + 8 of every sixteen,
/// and later the sums of those elements of every sixteen.
template <class Shape>
class WarpAttender {
  using Format = typename Shape::Format;
  static constexpr int kFragments = Shape::kPairFragments;
  /// Pairs of which this lane has scores.
  static constexpr int kColumns = 2 * kFragments;
  /// Groups of sixteen keys in a chunk.
  static constexpr int kTiles = kChunkKeys / kBlockTokens;
  /// What column 0 takes of a chunk. Those of the others are the next bits.
  static constexpr uint32_t kNothing = 1, kFirst = 1U << kColumns;

 public:
  __device__ WarpAttender(const ShoalAttention& args, const Work& work,
                          const OperandMemory<Shape>& memory)
      : args_(args), memory_(memory), head_dim_(row_elements(args.cache)) {
    const int first = work.pair + warp() * Shape::kPairsOfWarp;
    const int end =
        first + Shape::kPairsOfWarp < work.end_pair ? first + Shape::kPairsOfWarp : work.end_pair;
    has_pairs_ = first < end;
    common_first_ = first_key(args, work.position + (end - 1) / work.group);
    common_last_ = work.position + first / work.group;
  }

  /// Whether any of the block's pairs are this warp's. If not, it has nothing to compute.
  __device__ bool has_pairs() const { return has_pairs_; }

  /// scale * q.k of all keys of the chunk.
  __device__ void score(float scale) {
    for_scores([&](int tile, int f, int i) { scores_[tile][f][i] = 0; });
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
    is_inner(chunk) ? weigh_as<true>(chunk) : weigh_as<false>(chunk);
  }

  /// Folds P.V of the chunk, which was weighed last, into that of the chunks before it.
  __device__ void weigh_values(int chunk) {
    is_inner(chunk) ? weigh_values_as<true>() : weigh_values_as<false>();
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
    return memory_.pair(warp() * Shape::kPairsOfWarp + column / 2 * 8 + lane() % 4 * 2 +
                        column % 2);
  }

  /// Whether every pair of the warp sees the whole chunk, and has seen one before it. This is so
  /// for most chunks, and then nothing has to be asked for single keys and pairs. Places without a
  /// pair compute something that nobody reads.
  __device__ bool is_inner(int chunk) const {
    return chunk > common_first_ / kChunkKeys &&
           chunk * kChunkKeys + kChunkKeys - 1 <= common_last_;
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
    float max[kColumns];
#pragma unroll
    for (int column = 0; column < kColumns; ++column)
      max[column] = greatest<kInner>(column, keys_of_column<kInner>(column, chunk));
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const KeyRange keys = keys_of_column<kInner>(column, chunk);
      const float sum = sum_of_weights<kInner>(column, keys, max[column]);
      if (!kInner) note_chunk(column, chunk, keys);
      take_sum<kInner>(column, max[column], sum);
    }
    // A lane has two pairs of one key, and operand B takes two keys of one pair.
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* const two = scores_[tile][f] + 2 * half;
          weights_[tile].value[f][half] = transposed(Format::packed(two[0], two[1]));
        }
      }
    }
  }

  template <bool kInner>
  __device__ KeyRange keys_of_column(int column, int chunk) const {
    return kInner ? KeyRange{0, kChunkKeys} : keys_of(pair_of(column), chunk);
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
        x[tile] = seen ? Format::weight(exponential_of_negative(__fadd_rn(score, -max))) : 0.0f;
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
    const bool is_first = pair_of(column).first / kChunkKeys == chunk;
    const uint32_t marks = (keys.is_empty() ? kNothing : 0) | (is_first ? kFirst : 0);
    marks_ = (marks_ & ~((kNothing | kFirst) << column)) | marks << column;
  }
  template <bool kInner>
  __device__ bool takes_nothing(int column) const {
    return !kInner && (marks_ & kNothing << column) != 0;
  }
  template <bool kInner>
  __device__ bool takes_first(int column) const {
    return !kInner && (marks_ & kFirst << column) != 0;
  }

  /// As FoldInRegisters::take_sum, without branches, so that lanes do not part. Of the two scales
  /// one is exp(0), so one exponential is enough: the other argument plus 1 is 1, or NaN.
  template <bool kInner>
  __device__ void take_sum(int column, float max, float sum) {
    const Running all = all_[column];
    const bool stays = all.max > max;
    const float merged = stays ? all.max : max;
    const float old_less = __fadd_rn(all.max, -merged), new_less = __fadd_rn(max, -merged);
    const float smaller = exponential_of_negative(stays ? new_less : old_less);
    const float one = __fadd_rn(stays ? old_less : new_less, 1.0f);
    const float old_scale = stays ? one : smaller, new_scale = stays ? smaller : one;
    const float folded = __fmaf_rn(all.sum, old_scale, __fmul_rn(sum, new_scale));
    Running& taken = all_[column];
    taken = {merged, folded, old_scale, new_scale};
    if constexpr (!kInner) {
      // A pair takes its first chunk as it is.
      const bool first = takes_first<kInner>(column), nothing = takes_nothing<kInner>(column);
      taken.max = nothing ? all.max : first ? max : merged;
      taken.sum = nothing ? all.sum : first ? sum : folded;
    }
  }

  /// Two fragments of head_dim at once, because one has too few products that do not wait for each
  /// other.
  template <bool kInner>
  __device__ void weigh_values_as() {
#pragma unroll
    for (int d = 0; d < Shape::kDimFragments; d += 2) {
      if (d * kHeadDimUnit >= head_dim_) break;
      // Behind the head, the first of the two once more, for nobody.
      const int second = (d + 1) * kHeadDimUnit < head_dim_ ? d + 1 : d;
      float sums[2][kFragments][4] = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const auto* const values = memory_.values + tile * kBlockTokens * memory_.stride;
        Format::add_values(sums[0], values + d * kHeadDimUnit, memory_.stride, weights_[tile]);
        Format::add_values(sums[1], values + second * kHeadDimUnit, memory_.stride, weights_[tile]);
      }
      fold<kInner>(sums[0], out_[d]);
      fold<kInner>(sums[1], out_[d + 1]);
    }
  }

  /// Folds P.V of the chunk into that of the chunks before it, without branches.
  template <bool kInner>
  __device__ void fold(const float (&sums)[kFragments][4], float (&out)[kFragments][4]) const {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const Running& all = all_[column];
      const bool first = takes_first<kInner>(column), nothing = takes_nothing<kInner>(column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float value = sums[column / 2][column % 2 + 2 * half];
        float& sum = out[column / 2][column % 2 + 2 * half];
        const float folded = __fmaf_rn(sum, all.old_scale, __fmul_rn(value, all.new_scale));
        sum = nothing ? sum : first ? value : folded;
      }
    }
  }

  const ShoalAttention& args_;
  const OperandMemory<Shape>& memory_;
  const int head_dim_;
  bool has_pairs_;
  int common_first_, common_last_;       ///< the keys that all pairs of the warp see
  uint32_t marks_ = 0;                   ///< of the columns, of a chunk that is not inner
  float scores_[kTiles][kFragments][4];  ///< then the weights
  typename Format::template Pairs<kFragments> weights_[kTiles];
  Running all_[kColumns] = {};
  float out_[Shape::kDimFragments][kFragments][4] = {};
};

/// Goes over the chunks of the work. The values of a chunk come while its keys are multiplied, and
/// the keys of the next one while its values are.
template <class Shape>
__device__ void attend_by_warps(const ShoalAttention& args, const Work& work) {
  const OperandMemory<Shape> memory(row_elements(args.cache));
  const AttentionLoader<Shape> loader(args, work, memory);
  int32_t block = loader.begin();
  WarpAttender<Shape> attender(args, work, memory);
#pragma unroll 1
  for (int chunk = work.begin_chunk; chunk < work.end_chunk; ++chunk) {
    const bool more = chunk + 1 < work.end_chunk;
    copy_async_wait<0>();
    __syncthreads();  // the keys have come, and nobody reads the values before any more
    loader.load_values(chunk, block);
    copy_async_commit();
    if (more) block = loader.block_of(chunk + 1);
    __syncwarp();  // lanes may have parted to load, and they have to multiply together
    if (attender.has_pairs()) {
      attender.score(args.scale);
      attender.weigh(chunk);
    }
    copy_async_wait<0>();
    __syncthreads();  // the values have come, and nobody reads the keys any more
    if (more) loader.load_keys(chunk + 1, block);
    copy_async_commit();
    __syncwarp();
    if (attender.has_pairs()) attender.weigh_values(chunk);
  }
  attender.finish();
}

}  // namespace shoal::cuda
