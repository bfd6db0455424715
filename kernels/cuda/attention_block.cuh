#pragma once
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_formats.cuh"
#include "kernels/cuda/machine.cuh"

/// Attention whose pairs all threads of a block share: of the scores a warp has some keys, and of
/// P.V some elements. Between the two they meet in block memory. So also a block of eight pairs
/// keeps its four warps busy.
namespace shoal::cuda {

static_assert(kChunkKeys == kAttentionWarps * kBlockTokens, "a warp computes a block's scores");
inline constexpr int kScoreStride = kChunkKeys + 4;

/// The shape of a block: its pairs in fragments of eight, and the most fragments of head_dim that a
/// warp has.
template <class F, int PairFragments, int DimFragments>
struct AttentionShape {
  using Format = F;
  using Element = typename F::Element;
  using Activation = typename F::Activation;
  static constexpr int kPairFragments = PairFragments;
  static constexpr int kDimFragments = DimFragments;
  static constexpr int kPairs = 8 * PairFragments;
  /// Blocks that a multiprocessor must be able to hold. If the compiler chose, it would aim at more
  /// and spill registers.
  static constexpr int kAtOnce = 2;
  static constexpr int kMostHeadDim = kAttentionWarps * DimFragments * kHeadDimUnit;
  static_assert(PairFragments == 1 || PairFragments % 2 == 0, "they are loaded in twos");

  /// The distance from one row to the next in block memory: in keys and values, then in q, then in
  /// weights.
  __host__ __device__ static constexpr int cache_stride(int head_dim) {
    return head_dim + kRowPiece<Element>;
  }
  __host__ __device__ static constexpr int q_stride(int head_dim) {
    return head_dim + kRowPiece<Activation>;
  }
  static constexpr int kWeightStride = kChunkKeys + kRowPiece<Activation>;
  static constexpr int kCacheRows = F::kOneBuffer ? kChunkKeys : 2 * kChunkKeys;

  static constexpr size_t shared_bytes(int head_dim) {
    return static_cast<size_t>(kCacheRows * cache_stride(head_dim)) * sizeof(Element) +
           static_cast<size_t>(kPairs * (q_stride(head_dim) + kWeightStride)) * sizeof(Activation) +
           kPairs * (kScoreStride * sizeof(float) + sizeof(Running));
  }
  static_assert(shared_bytes(kMostHeadDim) <= kMostSharedBytes);
};

/// Where its operands are, and what the threads of a block tell each other.
template <class Shape>
struct AttentionMemory : OperandMemory<Shape> {
  typename Shape::Activation* weights;  ///< Format::weight(exp(score - max)), a row per pair
  float* scores;                        ///< a row per pair
  Running* running;

  __device__ explicit AttentionMemory(int head_dim) : OperandMemory<Shape>(head_dim) {
    weights = this->q + Shape::kPairs * this->q_stride;
    scores = reinterpret_cast<float*>(weights + Shape::kPairs * Shape::kWeightStride);
    running = reinterpret_cast<Running*>(scores + Shape::kPairs * kScoreStride);
  }
};

/// This warp's part of P.V: fragments of head_dim x fragments of pairs, as multiply_add leaves
/// them.
template <class Shape>
struct Weighted {
  float value[Shape::kDimFragments][Shape::kPairFragments][4];
};

/// Computes with what is in block memory.
template <class Shape>
class Attender {
  using Format = typename Shape::Format;
  using Pairs = typename Format::template Pairs<Shape::kPairFragments>;

 public:
  __device__ Attender(const AttentionMemory<Shape>& memory, int head_dim)
      : memory_(memory), head_dim_(head_dim) {}

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  /// scale * q.k for this warp's sixteen keys and all pairs.
  __device__ void score(float scale) const {
    float sums[Shape::kPairFragments][4] = {};
    const int stride = memory_.stride;
    const auto* const keys = memory_.keys + warp() * kBlockTokens * stride;
#pragma unroll 2
    for (int i = 0; i < head_dim_; i += Format::kStep) {
      Pairs q;
      q.load(memory_.q, memory_.q_stride, i);
      Format::add_keys(sums, keys + i, stride, q);
    }
#pragma unroll
    for (int f = 0; f < Shape::kPairFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = f * 8 + lane() % 4 * 2 + i % 2;
        const int key = warp() * kBlockTokens + lane() / 4 + i / 2 * 8;
        memory_.scores[pair * kScoreStride + key] = __fmul_rn(sums[f][i], scale);
      }
    }
  }

  /// Turns the scores of a chunk into weights, of which those of unseen keys are exactly 0. Calls
  /// found(pair's place, max, sum) in one thread for each pair that sees some of the chunk.
  template <class Found>
  __device__ void weigh(int chunk, const Found& found) const {
    const int lane16 = lane() % 16;
#pragma unroll
    for (int first = 0; first < Shape::kPairs; first += 2 * kAttentionWarps) {
      const int at = first + warp() * 2 + lane() / 16;
      const KeyRange keys = keys_of(memory_.pair(at), chunk);
      const float* const scores = memory_.scores + at * kScoreStride;
      float x[4], max = __uint_as_float(0xff800000);  // -infinity
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = scores[16 * i + lane16];
        if (keys.has(16 * i + lane16) && !(max > x[i])) max = x[i];
      }
      max = max_of_sixteen(max);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = keys.has(16 * i + lane16);
        x[i] = seen ? Format::weight(exponential(__fadd_rn(x[i], -max))) : 0.0f;
        memory_.weights[at * Shape::kWeightStride + 16 * i + lane16] = Format::rounded(x[i]);
      }
      const float sum = sum_of_sixteen(__fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3])));
      if (lane16 == 0 && !keys.is_empty()) found(at, max, sum);
    }
  }

  /// P.V of the chunk, from zero.
  __device__ void weigh_values(Weighted<Shape>& sums) const {
    sums = {};
    const int stride = memory_.stride;
    // More steps of float32 at once would take registers that they do not have.
    [[maybe_unused]] constexpr int kSteps = Format::kStep == 4 ? 2 : kChunkKeys / Format::kStep;
#pragma unroll kSteps
    for (int key = 0; key < kChunkKeys; key += Format::kStep) {
      Pairs weights;
      weights.load(memory_.weights, Shape::kWeightStride, key);
#pragma unroll
      for (int d = 0; d < Shape::kDimFragments; ++d) {
        if (dim_of(d) >= head_dim_) break;
        Format::add_values(sums.value[d], memory_.values + key * stride + dim_of(d), stride,
                           weights);
      }
    }
  }

  /// Where this warp's d-th fragment begins in head_dim.
  __device__ static int dim_of(int d) {
    return (d * kAttentionWarps + warp()) * kHeadDimUnit;
  }

  /// Calls body(pair's place, f, half) for this lane's two columns of every fragment.
  template <class Body>
  __device__ static void for_columns(const Body& body) {
#pragma unroll
    for (int f = 0; f < Shape::kPairFragments; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) body(f * 8 + lane() % 4 * 2 + half, f, half);
    }
  }
  /// Calls body(element of the head, d, index) for this lane's values of a column.
  template <class Body>
  __device__ void for_dims(int half, const Body& body) const {
#pragma unroll
    for (int d = 0; d < Shape::kDimFragments; ++d) {
      if (dim_of(d) >= head_dim_) break;
      body(dim_of(d) + lane() / 4, d, half);
      body(dim_of(d) + lane() / 4 + 8, d, half + 2);
    }
  }

 private:
  __device__ static float max_of_sixteen(float x) {
#pragma unroll
    for (int apart = 8; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, x, apart);
      x = other > x ? other : x;
    }
    return x;
  }

  const AttentionMemory<Shape>& memory_;
  const int head_dim_;
};

}  // namespace shoal::cuda
