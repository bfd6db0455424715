#pragma once
#include <arm_neon.h>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/lanes.h"

// The vector of kernels/cpu/vec.h as four 128-bit registers.

namespace shoal::SHOAL_ISA {
namespace {

struct Vec {
  float32x4_t a, b, c, d;
};
struct Mask {
  uint32x4_t a, b, c, d;  // all ones in the lanes that are set
};

template <typename Op>
inline Vec each(Vec x, const Op& op) {
  return {op(x.a), op(x.b), op(x.c), op(x.d)};
}
template <typename Op>
inline Vec each(Vec x, Vec y, const Op& op) {
  return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
}

inline Vec set1(float x) {
  const float32x4_t all = vdupq_n_f32(x);
  return {all, all, all, all};
}
inline Vec zero() {
  return set1(0.0f);
}
inline Vec add(Vec x, Vec y) {
  return each(x, y, [](float32x4_t p, float32x4_t q) { return vaddq_f32(p, q); });
}
inline Vec sub(Vec x, Vec y) {
  return each(x, y, [](float32x4_t p, float32x4_t q) { return vsubq_f32(p, q); });
}
inline Vec mul(Vec x, Vec y) {
  return each(x, y, [](float32x4_t p, float32x4_t q) { return vmulq_f32(p, q); });
}
inline Vec div(Vec x, Vec y) {
  return each(x, y, [](float32x4_t p, float32x4_t q) { return vdivq_f32(p, q); });
}
// Not vmaxq and vminq, which return NaN if either is NaN, and the greater of +0 and -0.
inline float32x4_t max_quarter(float32x4_t p, float32x4_t q) {
  return vbslq_f32(vcgtq_f32(p, q), p, q);
}
inline float32x4_t min_quarter(float32x4_t p, float32x4_t q) {
  return vbslq_f32(vcltq_f32(p, q), p, q);
}
/// Returns y if either is NaN.
inline Vec max(Vec x, Vec y) {
  return each(x, y, max_quarter);
}
inline Vec min(Vec x, Vec y) {
  return each(x, y, min_quarter);
}
/// x * y + z, rounded once.
inline Vec fma(Vec x, Vec y, Vec z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
          vfmaq_f32(z.d, x.d, y.d)};
}
/// z - x * y, rounded once.
inline Vec fnma(Vec x, Vec y, Vec z) {
  return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b), vfmsq_f32(z.c, x.c, y.c),
          vfmsq_f32(z.d, x.d, y.d)};
}
inline Vec round(Vec x) {
  return each(x, [](float32x4_t p) { return vrndnq_f32(p); });
}
/// p * 2^n for integral n in [-252, 252], in two factors because 2^n alone may not be a float32.
inline Vec scale_by_power(Vec x, Vec n) {
  return each(x, n, [](float32x4_t p, float32x4_t exponents) {
    const auto power = [](int32x4_t e) {
      return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23));
    };
    const int32x4_t exponent = vcvtnq_s32_f32(exponents), first = vshrq_n_s32(exponent, 1);
    return vmulq_f32(vmulq_f32(p, power(first)), power(vsubq_s32(exponent, first)));
  });
}

/// Lanes [begin, end). The bounds may be outside of 0..16.
inline Mask lanes_between(int begin, int end) {
  const auto quarter = [&](int first) {
    const int32_t numbers[4] = {first, first + 1, first + 2, first + 3};
    const int32x4_t lane = vld1q_s32(numbers);
    return vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
  };
  return {quarter(0), quarter(4), quarter(8), quarter(12)};
}
/// x if the mask is set, else y.
inline Vec select(Mask mask, Vec x, Vec y) {
  return {vbslq_f32(mask.a, x.a, y.a), vbslq_f32(mask.b, x.b, y.b), vbslq_f32(mask.c, x.c, y.c),
          vbslq_f32(mask.d, x.d, y.d)};
}
/// Bit i is set if x[i] == y[i].
inline uint32_t equal_bits(Vec x, Vec y) {
  const uint32_t bits[4] = {1, 2, 4, 8};
  const uint32x4_t bit = vld1q_u32(bits);
  const auto quarter = [&](float32x4_t p, float32x4_t q) {
    return vaddvq_u32(vandq_u32(vceqq_f32(p, q), bit));
  };
  return quarter(x.a, y.a) | quarter(x.b, y.b) << 4 | quarter(x.c, y.c) << 8 |
         quarter(x.d, y.d) << 12;
}

/// Sixteen elements of two bytes.
struct Halves {
  uint16x8_t lo, hi;
};
inline Halves load_u16(const void* p, int lanes) {
  uint16_t padded[kLanes] = {};
  const auto* from = static_cast<const uint16_t*>(p);
  if (lanes != kLanes) {
    __builtin_memcpy(padded, p, static_cast<size_t>(lanes) * sizeof(uint16_t));
    from = padded;
  }
  return {vld1q_u16(from), vld1q_u16(from + 8)};
}
inline void store_u16(void* p, Halves bits, int lanes) {
  uint16_t all[kLanes];
  auto* to = lanes == kLanes ? static_cast<uint16_t*>(p) : all;
  vst1q_u16(to, bits.lo);
  vst1q_u16(to + 8, bits.hi);
  if (lanes != kLanes) __builtin_memcpy(p, all, static_cast<size_t>(lanes) * sizeof(uint16_t));
}
inline float32x4_t widen_bf16(uint16x4_t bits) {
  return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
}
inline float32x4_t widen_f16(uint16x4_t bits) {
  return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}

/// Loads the first `lanes` (1..16) elements from any address, widened. The other lanes are zero,
/// and their memory is not read.
inline Vec load(const float* p, int lanes = kLanes) {
  float padded[kLanes] = {};
  if (lanes != kLanes) {
    __builtin_memcpy(padded, p, static_cast<size_t>(lanes) * sizeof(float));
    p = padded;
  }
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
inline Vec load(const Bf16* p, int lanes = kLanes) {
  const Halves bits = load_u16(p, lanes);
  return {widen_bf16(vget_low_u16(bits.lo)), widen_bf16(vget_high_u16(bits.lo)),
          widen_bf16(vget_low_u16(bits.hi)), widen_bf16(vget_high_u16(bits.hi))};
}
inline Vec load(const F16* p, int lanes = kLanes) {
  const Halves bits = load_u16(p, lanes);
  return {widen_f16(vget_low_u16(bits.lo)), widen_f16(vget_high_u16(bits.lo)),
          widen_f16(vget_low_u16(bits.hi)), widen_f16(vget_high_u16(bits.hi))};
}

/// Rounds the first `lanes` to the element type (to nearest even; NaN stays NaN) and stores them.
inline void store(float* p, Vec x, int lanes = kLanes) {
  float all[kLanes];
  float* to = lanes == kLanes ? p : all;
  vst1q_f32(to, x.a);
  vst1q_f32(to + 4, x.b);
  vst1q_f32(to + 8, x.c);
  vst1q_f32(to + 12, x.d);
  if (lanes != kLanes) __builtin_memcpy(p, all, static_cast<size_t>(lanes) * sizeof(float));
}
inline void store(Bf16* p, Vec x, int lanes = kLanes) {
  const auto round_bits = [](float32x4_t quarter) {
    const uint32x4_t bits = vreinterpretq_u32_f32(quarter);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(quarter, quarter), rounded, quiet), 16);
  };
  store_u16(p,
            {vcombine_u16(round_bits(x.a), round_bits(x.b)),
             vcombine_u16(round_bits(x.c), round_bits(x.d))},
            lanes);
}
inline void store(F16* p, Vec x, int lanes = kLanes) {
  const auto half = [](float32x4_t first, float32x4_t second) {
    return vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(first), vcvt_f16_f32(second)));
  };
  store_u16(p, {half(x.a, x.b), half(x.c, x.d)}, lanes);
}

/// Two weights of each output, or the two inputs that belong to them.
struct Pair {
  Vec even, odd;
};
/// Sixteen pairs, widened, from any address.
inline Pair load_pairs(const Bf16* p) {
  const auto* from = reinterpret_cast<const uint32_t*>(p);
  const auto even = [&](int i) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(from + i), 16));
  };
  const auto odd = [&](int i) {
    return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(from + i), vdupq_n_u32(0xFFFF0000u)));
  };
  return {{even(0), even(4), even(8), even(12)}, {odd(0), odd(4), odd(8), odd(12)}};
}
inline Pair load_pairs(const F16* p) {
  const auto* from = reinterpret_cast<const uint16_t*>(p);
  // vld2q splits even and odd elements.
  const uint16x8x2_t first = vld2q_u16(from), second = vld2q_u16(from + 16);
  const auto widened = [](uint16x8_t lo, uint16x8_t hi) {
    return Vec{widen_f16(vget_low_u16(lo)), widen_f16(vget_high_u16(lo)),
               widen_f16(vget_low_u16(hi)), widen_f16(vget_high_u16(hi))};
  };
  return {widened(first.val[0], second.val[0]), widened(first.val[1], second.val[1])};
}

/// Outputs in order, from lanes that belong to such pairs.
template <typename Element>
inline Vec in_order(Vec x, Element) {
  return x;
}
/// One pair, widened, in every lane.
inline Pair set1_pair(const Bf16* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  const uint32x4_t pairs = vdupq_n_u32(pair);
  const float32x4_t even = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
  const float32x4_t odd = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000u)));
  return {{even, even, even, even}, {odd, odd, odd, odd}};
}

/// The sum of all lanes, always in this order: lane i with i + 8, then with i + 4, i + 2, i + 1.
inline float sum_of(Vec x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float max_of(Vec x) {
  const float32x4_t four = max_quarter(max_quarter(x.a, x.c), max_quarter(x.b, x.d));
  float lanes[4];
  vst1q_f32(lanes, four);
  const float even = lanes[0] > lanes[2] ? lanes[0] : lanes[2];
  const float odd = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
  return even > odd ? even : odd;
}

}  // namespace
}  // namespace shoal::SHOAL_ISA
