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
/// (Dao, 2023). Here the pairs are the rows of operand A, and keys and elements of values are the
/// columns of B, because then a lane's weights are what it has to give to the next product. A
/// tensor core's sum is the same whichever operand a factor is of, so each pair's operations and
/// their order are those of attention_block.cuh and attention_fold.cuh, and so are its bits.
namespace shoal::cuda {

/// The most fragments of head_dim, and the blocks that a multiprocessor must be able to hold.
template <int DimFragments, int AtOnce>
struct WarpShape {
  using Format = Bf16Attention;
  using Element = Format::Element;
  using Activation = Format::Activation;
  static constexpr int kDimFragments = DimFragments;
  static constexpr int kAtOnce = AtOnce;
  static constexpr int kPairsOfWarp = 16;
  static constexpr int kPairs = kAttentionWarps * kPairsOfWarp;
  static constexpr int kMostHeadDim = DimFragments * kHeadDimUnit;
  /// Whether there is code of its own for plain chunks, which takes more registers.
  static constexpr bool kHasPlain = DimFragments <= 8;

  /// The same for all heads of the shape, so that addresses are sums with constants.
  __host__ __device__ static constexpr int cache_stride(int) { return kStride; }
  __host__ __device__ static constexpr int q_stride(int) { return kStride; }
  static constexpr int kStride = kMostHeadDim + kRowPiece<Element>;
  static constexpr size_t shared_bytes(int) {
    return static_cast<size_t>((2 * kChunkKeys + kPairs) * kStride) * sizeof(Element);
  }
  static_assert(shared_bytes(kMostHeadDim) <= kMostSharedBytes);
};

/// One warp and its pairs. Each lane has two of the pairs: lane / 4 and lane / 4 + 8. For each of
/// its two pairs it holds two scores of every eight keys: those of key 2 (lane % 4) and of the key
/// after it. Later it holds the sums of the elements with the same two numbers, also of every
/// eight.
template <class Shape>
class WarpAttender {
  using Format = typename Shape::Format;
  using Element = typename Shape::Element;
  static constexpr int kPairsOfLane = 2;
  /// Groups of sixteen keys in a chunk.
  static constexpr int kTiles = kChunkKeys / kBlockTokens;
  /// A step of sixteen keys, as two operands B.
  using Keys = typename Format::template Pairs<2>;

 public:
  __device__ WarpAttender(const ShoalAttention& args, const Work& work,
                          const OperandMemory<Shape>& memory)
      : args_(args), memory_(memory), head_dim_(row_elements(args.cache)) {
    const int first = work.pair + warp() * Shape::kPairsOfWarp;
    const int end =
        first + Shape::kPairsOfWarp < work.end_pair ? first + Shape::kPairsOfWarp : work.end_pair;
    has_pairs_ = first < end;
    const int common_first = first_key(args, work.position + (end - 1) / work.group);
    const int common_end = work.position + first / work.group + 1;
    plain_begin_ = (common_first + kChunkKeys - 1) / kChunkKeys;
    plain_end_ = head_dim_ == Shape::kMostHeadDim ? common_end / kChunkKeys : 0;
    // Outputs begin as -0, because -0 + x is x for every x, also for -0.
    for_outputs([&](int d, int half, int i) { out_[d][half][i] = -0.0f; });
  }

  /// Whether any of the block's pairs are this warp's. If not, it has nothing to compute.
  __device__ bool has_pairs() const { return has_pairs_; }

  /// The weights of a chunk, whose sums are folded into those of the chunks before it.
  __device__ void weigh(int chunk) {
    if constexpr (Shape::kHasPlain) {
      if (is_plain(chunk)) return weigh_as<true>(chunk);
    }
    weigh_as<false>(chunk);
  }

  /// Folds P.V of the chunk, which was weighed last, into that of the chunks before it.
  __device__ void weigh_values(int chunk) {
    if constexpr (Shape::kHasPlain) {
      if (is_plain(chunk)) return weigh_values_as<true>(chunk);
    }
    weigh_values_as<false>(chunk);
  }

  /// Writes the outputs.
  __device__ void finish() const {
#pragma unroll
    for (int p = 0; p < kPairsOfLane; ++p) {
      const Pair pair = pair_of(p);
      if (pair.row < 0) continue;
      auto* const to = static_cast<typename Shape::Activation*>(args_.out) +
                       pair.row * args_.out_stride + pair.head * args_.cache.head_dim;
      for_outputs([&](int d, int half, int i) {
        const int dim = d * kHeadDimUnit + half * 8 + lane() % 4 * 2 + i % 2;
        if (i / 2 == p && dim < args_.cache.head_dim)
          store_global(to + dim, Format::rounded(__fdiv_rn(out_[d][half][i], all_[p].sum)));
      });
    }
  }

 private:
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }

  __device__ const Pair& pair_of(int p) const {
    return memory_.pair(warp() * Shape::kPairsOfWarp + lane() / 4 + 8 * p);
  }

  /// Whether every pair of the warp sees the whole chunk, and no head of the shape is longer. This
  /// is so for most chunks, and then nothing has to be asked for single keys, pairs and fragments.
  /// Places without a pair compute something that nobody reads.
  __device__ bool is_plain(int chunk) const {
    return plain_begin_ <= chunk && chunk < plain_end_;
  }
  template <bool kPlain>
  __device__ bool has_fragment(int d) const {
    return kPlain || d * kHeadDimUnit < head_dim_;
  }

  template <class Body>
  __device__ static void for_outputs(const Body& body) {
#pragma unroll
    for (int d = 0; d < Shape::kDimFragments; ++d) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) body(d, half, i);
      }
    }
  }
  template <class Body>
  __device__ static void for_scores(const Body& body) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) body(tile, half, i);
      }
    }
  }

  template <bool kPlain>
  __device__ void weigh_as(int chunk) {
    score<kPlain>();
    float max[kPairsOfLane];
#pragma unroll
    for (int p = 0; p < kPairsOfLane; ++p) {
      if constexpr (!kPlain) hide(p, keys_of(pair_of(p), chunk));
      max[p] = greatest(p);
    }
#pragma unroll
    for (int p = 0; p < kPairsOfLane; ++p) {
      const float sum = sum_of_weights(p, max[p]);
      const bool nothing = takes_nothing<kPlain>(p, chunk);
      take_sum(p, max[p], sum, nothing);
    }
  }

  /// scale * q.k of all keys of the chunk.
  template <bool kPlain>
  __device__ void score() {
    for_scores([&](int tile, int half, int i) { scores_[tile][half][i] = 0; });
#pragma unroll
    for (int d = 0; d < Shape::kDimFragments; ++d) {
      if (!has_fragment<kPlain>(d)) break;
      uint32_t q[4];
      load_matrices(q, memory_.q + (warp() * Shape::kPairsOfWarp + lane() % 16) * Shape::kStride +
                           lane() / 16 * 8 + d * kHeadDimUnit);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        Keys keys;
        keys.load(memory_.keys + tile * kBlockTokens * Shape::kStride, Shape::kStride,
                  d * kHeadDimUnit);
#pragma unroll
        for (int half = 0; half < 2; ++half) multiply_add(scores_[tile][half], q, keys.value[half]);
      }
    }
    for_scores([&](int tile, int half, int i) {
      scores_[tile][half][i] = __fmul_rn(scores_[tile][half][i], args_.scale);
    });
  }

  /// Sets the scores of unseen keys to -infinity, so that their weights are exactly 0.
  __device__ void hide(int p, const KeyRange& keys) {
    const int first = lane() % 4 * 2;  // of this lane's keys
    const KeyRange seen{keys.begin - first, keys.end - first};
    for_scores([&](int tile, int half, int i) {
      if (i / 2 == p && !seen.has(tile * kBlockTokens + half * 8 + i % 2))
        scores_[tile][half][i] = kHidden;
    });
  }

  /// The greatest score of a pair. If one is NaN, so is the sum of weights, and then all that this
  /// decides is NaN.
  __device__ float greatest(int p) const {
    float max = kHidden;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const two = scores_[tile][half] + 2 * p;
        max = greater(max, greater(two[0], two[1]));
      }
    }
#pragma unroll
    for (int apart = 2; apart > 0; apart /= 2)
      max = greater(max, __shfl_xor_sync(kAllLanes, max, apart));
    return max;
  }

  /// The weights of a pair, and their sum in the order of Attender::weigh: keys that are 16 apart,
  /// then 8, 4, 2 and 1.
  __device__ float sum_of_weights(int p, float max) {
    float sums[2][2];  // of keys that are 8 apart, and of neighbours
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[2][kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float* const two = scores_[tile][half] + 2 * p;
        const uint32_t both = to_bf16_pair(exponential_up_to_88(__fadd_rn(two[0], -max)),
                                           exponential_up_to_88(__fadd_rn(two[1], -max)));
        weights_[tile][2 * half + p] = both;
        x[0][tile] = __uint_as_float(both << 16);
        x[1][tile] = __uint_as_float(both & 0xffff0000);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
        sums[half][i] = __fadd_rn(__fadd_rn(x[i][0], x[i][1]), __fadd_rn(x[i][2], x[i][3]));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[0][i] = __fadd_rn(sums[0][i], sums[1][i]);
#pragma unroll
      for (int apart = 2; apart > 0; apart /= 2)
        sums[0][i] = __fadd_rn(sums[0][i], __shfl_xor_sync(kAllLanes, sums[0][i], apart));
    }
    return __fadd_rn(sums[0][0], sums[0][1]);
  }

  /// Whether a pair sees no key of the chunk, because of others of its warp.
  template <bool kPlain>
  __device__ bool takes_nothing(int p, int chunk) const {
    return !kPlain && keys_of(pair_of(p), chunk).is_empty();
  }

  /// As FoldInRegisters::take_sum, but without branches, so that lanes do not part. One of the two
  /// scales is exp(0). It is computed as its argument plus 1, which is 1, or NaN if a score was.
  /// The first chunk is folded into a maximum of -infinity, whose scale is 0, and so is taken as it
  /// is.
  __device__ void take_sum(int p, float max, float sum, bool nothing) {
    const Running all = all_[p];
    const bool stays = all.max > max;
    const float merged = stays ? all.max : max;
    const float old_less = __fadd_rn(all.max, -merged), new_less = __fadd_rn(max, -merged);
    const float smaller = exponential_up_to_88(stays ? new_less : old_less);
    const float one = __fadd_rn(stays ? old_less : new_less, 1.0f);
    const float old_scale = stays ? one : smaller, new_scale = stays ? smaller : one;
    const float folded = __fmaf_rn(all.sum, old_scale, __fmul_rn(sum, new_scale));
    all_[p] = {nothing ? all.max : merged, nothing ? all.sum : folded, old_scale, new_scale};
  }

  /// Two fragments of head_dim at once, because one has too few products that do not wait for each
  /// other.
  template <bool kPlain>
  __device__ void weigh_values_as(int chunk) {
    const bool nothing[] = {takes_nothing<kPlain>(0, chunk), takes_nothing<kPlain>(1, chunk)};
#pragma unroll
    for (int d = 0; d < Shape::kDimFragments; d += 2) {
      if (!has_fragment<kPlain>(d)) break;
      // Behind the end of the head the first fragment is multiplied once more, and nobody reads it.
      const int second = has_fragment<kPlain>(d + 1) ? d + 1 : d;
      float sums[2][2][4] = {};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        add_values(sums[0], tile, d);
        add_values(sums[1], tile, second);
      }
      fold(sums[0], out_[d], nothing);
      fold(sums[1], out_[d + 1], nothing);
    }
  }

  /// Adds P.V of sixteen keys to the sums of sixteen elements.
  __device__ void add_values(float (&sums)[2][4], int tile, int d) const {
    const Element* const rows = memory_.values + tile * kBlockTokens * Shape::kStride;
    uint32_t b[4];
    // Four matrices are loaded. The second one has the next keys for the elements of the first one.
    // The last two have the next elements.
    load_transposed(b, rows + lane() % 16 * Shape::kStride + lane() / 16 * 8 + d * kHeadDimUnit);
    multiply_add(sums[0], weights_[tile], {b[0], b[1]});
    multiply_add(sums[1], weights_[tile], {b[2], b[3]});
  }

  /// Folds P.V of the chunk into that of the chunks before it, without branches.
  __device__ void fold(const float (&sums)[2][4], float (&out)[2][4],
                       const bool (&nothing)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Running& all = all_[i / 2];
        const float value = __fmul_rn(sums[half][i], all.new_scale);
        const float folded = __fmaf_rn(out[half][i], all.old_scale, value);
        out[half][i] = nothing[i / 2] ? out[half][i] : folded;
      }
    }
  }

  static constexpr float kHidden = -__builtin_huge_valf();  ///< -infinity

  const ShoalAttention& args_;
  const OperandMemory<Shape>& memory_;
  const int head_dim_;
  bool has_pairs_;
  int plain_begin_, plain_end_;  ///< of chunks
  float scores_[kTiles][2][4];
  uint32_t weights_[kTiles][4];  ///< operand A of each tile
  Running all_[kPairsOfLane] = {{kHidden, 0, 0, 0}, {kHidden, 0, 0, 0}};
  float out_[Shape::kDimFragments][2][4];
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
  for (int chunk = work.begin_chunk; chunk * kChunkKeys < work.end_key; ++chunk) {
    const bool more = (chunk + 1) * kChunkKeys < work.end_key;
    copy_async_wait<0>();
    __syncthreads();  // the keys have come, and nobody reads the values before any more
    loader.load_values(chunk, block);
    copy_async_commit();
    if (more) block = loader.block_of(chunk + 1);
    __syncwarp();  // lanes may have parted to load, and they have to multiply together
    if (attender.has_pairs()) attender.weigh(chunk);
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
