#pragma once
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/machine.cuh"
#include "runtime/device/cuda_ops.h"

/// The arithmetic of everything but products: float32 operations that IEEE 754 rounds in one way
/// only, with subnormals flushed, in the order of kernels/cpu and so with its bits.
namespace shoal::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffff;
/// A sum over a row is one sum per lane, of this many, which are then added in one order.
inline constexpr int kSumLanes = 64;

__device__ inline float from_bf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
/// Rounds to nearest even. NaN stays NaN.
__device__ inline uint16_t to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>(rounded >> 16);
}

/// The type of activations beside weights, or a cache, of this type.
__host__ __device__ inline int32_t activation_type(int32_t type) {
  return type == kShoalBf16 ? kShoalBf16 : kShoalF32;
}

/// Element `at` of an array of this type.
__device__ inline float load_element(const void* from, int32_t type, int64_t at) {
  if (type == kShoalF32) return load_global(static_cast<const float*>(from) + at);
  const uint16_t bits = load_global(static_cast<const uint16_t*>(from) + at);
  return type == kShoalF16 ? from_f16(bits) : from_bf16(bits);
}
/// The same, rounded to nearest even.
__device__ inline void store_element(void* to, int32_t type, int64_t at, float value) {
  if (type == kShoalF32) {
    store_global(static_cast<float*>(to) + at, value);
  } else {
    const uint16_t bits = type == kShoalF16 ? to_f16(value) : to_bf16(value);
    store_global(static_cast<uint16_t*>(to) + at, bits);
  }
}

/// 2^n for n in [-126, 127].
__device__ inline float power_of_two(int n) {
  return __uint_as_float(static_cast<uint32_t>(n + 127) << 23);
}

/// With x = n ln2 + r, so that exp(x) = 2^n exp(r): exp(r), and a float whose last bits are n.
struct ExponentialParts {
  float of_rest, shifted;
};
/// A float32 of this size has no fraction, so a sum with it rounds to the nearest integer, which
/// its last bits then hold.
inline constexpr float kNoFraction = 0x1.8p+23f;

/// The parts, by the steps of kernels/cpu/vec.h, which explains them.
__device__ inline ExponentialParts exponential_parts(float x) {
  const float shifted = __fadd_rn(__fmul_rn(x, 0x1.715476p+0f), kNoFraction);
  const float n = __fadd_rn(shifted, -kNoFraction);
  const float r = __fmaf_rn(-n, -0x1.05c610p-29f, __fmaf_rn(-n, 0x1.62e430p-1f, x));
  float p = 1.0f / 5040;
  p = __fmaf_rn(p, r, 1.0f / 720);
  p = __fmaf_rn(p, r, 1.0f / 120);
  p = __fmaf_rn(p, r, 1.0f / 24);
  p = __fmaf_rn(p, r, 1.0f / 6);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  return {p, shifted};
}

/// exp(x) with the bits of kernels/cpu.
__device__ inline float exponential(float x) {
  const ExponentialParts parts = exponential_parts(x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x);
  // In two factors, because 2^n alone may not be a float32.
  const int exponent =
      static_cast<int>(__float_as_uint(parts.shifted) - __float_as_uint(kNoFraction));
  const int first = exponent >> 1;
  // A NaN has no such bits, but whatever these powers then are, the result is NaN.
  return __fmul_rn(__fmul_rn(parts.of_rest, power_of_two(first)), power_of_two(exponent - first));
}

/// exp(x) with the same bits in fewer steps, for x up to 88, or NaN. 2^n is then one factor,
/// because a result below 2^-126 is 0. For x below -88 the result is 0, as it is for -88: n is -127
/// there, and the factor for that n has only zero bits.
__device__ inline float exponential_up_to_88(float x) {
  const ExponentialParts parts = exponential_parts(x < -88.0f ? -88.0f : x);
  // The shift leaves only n of `shifted`, and moves it to the exponent.
  const uint32_t factor = (__float_as_uint(parts.shifted) << 23) + 0x3f800000;
  return __fmul_rn(parts.of_rest, __uint_as_float(factor));
}

/// The sum over sixteen neighbouring lanes, in all of them: lane i with i + 8, then with i + 4,
/// i + 2 and i + 1. All lanes of the warp take part.
__device__ inline float sum_of_sixteen(float x) {
#pragma unroll
  for (int apart = 8; apart > 0; apart /= 2) x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, apart));
  return x;
}

/// Adds 64 sums in the order of kernels/cpu, which is (0 + 16) + (32 + 48) and so on, then the
/// sixteen. Every lane of the warp gets the sum; `sums` is in block memory.
__device__ inline float sum_of_lanes(const float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  return sum_of_sixteen(__fadd_rn(__fadd_rn(sums[lane], sums[16 + lane]),
                                  __fadd_rn(sums[32 + lane], sums[48 + lane])));
}

/// 1 / sqrt(mean + eps) of `columns` numbers whose squares have this sum.
__device__ inline float inverse_rms(float squares, int columns, float eps) {
  const float mean = __fdiv_rn(squares, static_cast<float>(columns));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

}  // namespace shoal::cuda
