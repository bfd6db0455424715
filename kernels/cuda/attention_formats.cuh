#pragma once
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/machine.cuh"

/// How attention multiplies what is in block memory, for each type of the cache. This decides the
/// bits of q.k and P.V. Sums have the layout of multiply_add: here 16 keys, or elements of values,
/// by 8 pairs in each fragment; in attention_warps.cuh the other way round.
namespace shoal::cuda {

/// Elements of 16 bytes. Rows in block memory are this many longer than they need to be, so that
/// eight of them begin in different banks.
template <class Element>
inline constexpr int kRowPiece = 16 / static_cast<int>(sizeof(Element));

__device__ inline int attention_lane() {
  return static_cast<int>(threadIdx.x) % 32;
}

/// Operand B of tensor cores: from the pairs' rows, two pieces of 16 bytes.
template <int kPairFragments, class Element>
__device__ inline void load_pairs(uint32_t (&to)[kPairFragments][2], const Element* rows,
                                  int stride, int column) {
  const int lane = attention_lane(), at = column + lane / 8 % 2 * kRowPiece<Element>;
  if constexpr (kPairFragments == 1) {
    load_matrices(to[0], rows + lane % 8 * stride + at);
  } else {
#pragma unroll
    for (int f = 0; f < kPairFragments; f += 2) {
      uint32_t two[4];
      load_matrices(two, rows + (f * 8 + lane / 16 * 8 + lane % 8) * stride + at);
      to[f][0] = two[0], to[f][1] = two[1];
      to[f + 1][0] = two[2], to[f + 1][1] = two[3];
    }
  }
}

/// bf16, on tensor cores.
struct Bf16Attention {
  using Element = uint16_t;     ///< of keys and values
  using Activation = uint16_t;  ///< of q, P and the output
  /// Whether keys and values take the same block memory, one after the other.
  static constexpr bool kOneBuffer = false;
  /// Elements of a head, or keys, that one step takes.
  static constexpr int kStep = 16;

  /// A step of the pairs' side: q, or P.
  template <int kPairFragments>
  struct Pairs {
    uint32_t value[kPairFragments][2];
    __device__ void load(const Activation* rows, int stride, int column) {
      load_pairs(value, rows, stride, column);
    }
  };

  /// Adds q.k of a step to the sums of sixteen keys. keys: the first one's row, from the step on.
  template <int kPairFragments>
  __device__ static void add_keys(float (&sums)[kPairFragments][4], const Element* keys, int stride,
                                  const Pairs<kPairFragments>& q) {
    const int lane = attention_lane();
    uint32_t a[4];
    load_matrices(a, keys + lane % 16 * stride + lane / 16 * 8);
#pragma unroll
    for (int f = 0; f < kPairFragments; ++f) multiply_add(sums[f], a, q.value[f]);
  }

  /// Adds P.V of a step of keys to the sums of sixteen elements. values: the step's first row, from
  /// those elements on.
  template <int kPairFragments>
  __device__ static void add_values(float (&sums)[kPairFragments][4], const Element* values,
                                    int stride, const Pairs<kPairFragments>& weights) {
    const int lane = attention_lane();
    uint32_t a[4];
    // Four matrices are loaded. The second one has the next elements of the keys of the first one.
    // The last two have the next keys.
    load_transposed(a, values + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
#pragma unroll
    for (int f = 0; f < kPairFragments; ++f) multiply_add(sums[f], a, weights.value[f]);
  }

  /// P as the products take it. The sum takes the same, so that the weights of a row add up to 1.
  __device__ static float weight(float p) {
    return from_bf16(to_bf16(p));
  }
  __device__ static Activation rounded(float value) {
    return to_bf16(value);
  }
  __device__ static float finished(float sum) {
    return sum;
  }
};

/// float16 beside q and P of float32, on tensor cores as tf32.
struct F16Attention {
  using Element = uint16_t;
  using Activation = float;
  static constexpr bool kOneBuffer = false;
  static constexpr int kStep = 8;

  template <int kPairFragments>
  struct Pairs {
    uint32_t value[kPairFragments][2];
    __device__ void load(const Activation* rows, int stride, int column) {
      load_pairs(value, rows, stride, column);
#pragma unroll
      for (int f = 0; f < kPairFragments; ++f) {
        value[f][0] = to_tf32(__uint_as_float(value[f][0]));
        value[f][1] = to_tf32(__uint_as_float(value[f][1]));
      }
    }
  };

  template <int kPairFragments>
  __device__ static void add_keys(float (&sums)[kPairFragments][4], const Element* keys, int stride,
                                  const Pairs<kPairFragments>& q) {
    add(sums, keys + attention_lane() / 4 * stride + attention_lane() % 4, stride, 1, q);
  }

  template <int kPairFragments>
  __device__ static void add_values(float (&sums)[kPairFragments][4], const Element* values,
                                    int stride, const Pairs<kPairFragments>& weights) {
    add(sums, values + attention_lane() % 4 * stride + attention_lane() / 4, 1, stride, weights);
  }

  __device__ static float weight(float p) {
    return __uint_as_float(to_tf32(p));
  }
  __device__ static Activation rounded(float value) {
    return value;
  }
  __device__ static float finished(float sum) {
    return sum;
  }

 private:
  /// at: the lane's first element of operand A. The others are eight rows and four columns on.
  template <int kPairFragments>
  __device__ static void add(float (&sums)[kPairFragments][4], const Element* at, int row,
                             int column, const Pairs<kPairFragments>& pairs) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = __float_as_uint(from_f16(at[i % 2 * 8 * row + i / 2 * 4 * column]));
#pragma unroll
    for (int f = 0; f < kPairFragments; ++f) multiply_add_tf32(sums[f], a, pairs.value[f]);
  }
};

/// float32, by fused multiply-adds. A lane holds the same sums that it would hold if a tensor core
/// computed them.
struct F32Attention {
  using Element = float;
  using Activation = float;
  static constexpr bool kOneBuffer = true;  // two have no room
  static constexpr int kStep = 4;

  struct alignas(16) Four {
    float value[4];
  };
  __device__ static Four four_at(const float* from) { return *reinterpret_cast<const Four*>(from); }

  template <int kPairFragments>
  struct Pairs {
    Four value[kPairFragments][2];
    __device__ void load(const Activation* rows, int stride, int column) {
#pragma unroll
      for (int f = 0; f < kPairFragments; ++f) {
        const Activation* const row = rows + (f * 8 + attention_lane() % 4 * 2) * stride + column;
        value[f][0] = four_at(row);
        value[f][1] = four_at(row + stride);
      }
    }
  };

  template <int kPairFragments>
  __device__ static void add_keys(float (&sums)[kPairFragments][4], const Element* keys, int stride,
                                  const Pairs<kPairFragments>& q) {
    const Element* const row = keys + attention_lane() / 4 * stride;
    const Four first = four_at(row), second = four_at(row + 8 * stride);
#pragma unroll
    for (int i = 0; i < kStep; ++i) add(sums, first.value[i], second.value[i], q, i);
  }

  template <int kPairFragments>
  __device__ static void add_values(float (&sums)[kPairFragments][4], const Element* values,
                                    int stride, const Pairs<kPairFragments>& weights) {
    values += attention_lane() / 4;
#pragma unroll
    for (int i = 0; i < kStep; ++i, values += stride) add(sums, values[0], values[8], weights, i);
  }

  __device__ static float weight(float p) {
    return p;
  }
  __device__ static Activation rounded(float value) {
    return value;
  }
  /// The products of unseen keys are zeros of either sign. So a sum of zero may be one of either.
  __device__ static float finished(float sum) {
    return __fadd_rn(sum, 0.0f);
  }

 private:
  template <int kPairFragments>
  __device__ static void add(float (&sums)[kPairFragments][4], float first, float second,
                             const Pairs<kPairFragments>& pairs, int i) {
#pragma unroll
    for (int f = 0; f < kPairFragments; ++f) {
      const float left = pairs.value[f][0].value[i], right = pairs.value[f][1].value[i];
      sums[f][0] = __fmaf_rn(first, left, sums[f][0]);
      sums[f][1] = __fmaf_rn(first, right, sums[f][1]);
      sums[f][2] = __fmaf_rn(second, left, sums[f][2]);
      sums[f][3] = __fmaf_rn(second, right, sums[f][3]);
    }
  }
};

}  // namespace shoal::cuda
