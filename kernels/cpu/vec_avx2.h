#pragma once
#include <immintrin.h>

#include "kernels/cpu/lanes.h"

// The vector of kernels/cpu/vec.h as two registers of 256 bits.

namespace shoal::SHOAL_ISA {
namespace {

struct Vec {
  __m256 lo, hi;
};
struct Mask {
  __m256i lo, hi;  // all ones in the lanes that are set
};

inline Vec zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Vec set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Vec add(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Vec mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Vec div(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
/// Returns b if either is NaN.
inline Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
/// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
/// c - a * b, rounded once.
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline __m256 round_half(__m256 x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec round(Vec x) {
  return {round_half(x.lo), round_half(x.hi)};
}
/// p * 2^n for integral n in [-252, 252], in two factors because 2^n alone may not be a float32.
inline __m256 scale_half(__m256 p, __m256 n) {
  const __m256i exponent = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(exponent, 1);
  const auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(p, power(first)), power(_mm256_sub_epi32(exponent, first)));
}
inline Vec scale_by_power(Vec p, Vec n) {
  return {scale_half(p.lo, n.lo), scale_half(p.hi, n.hi)};
}

inline __m256i half_between(int begin, int end) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                             _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
}
/// Lanes [begin, end). The bounds may be outside of 0..16.
inline Mask lanes_between(int begin, int end) {
  return {half_between(begin, end), half_between(begin - 8, end - 8)};
}
/// a if the mask is set, else b.
inline Vec select(Mask mask, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(mask.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(mask.hi))};
}
/// Bit i is set if a[i] == b[i].
inline uint32_t equal_bits(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ))) << 8;
}

inline __m256i load_u16(const void* p, int lanes) {
  if (lanes == kLanes) return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  uint16_t padded[kLanes] = {};
  __builtin_memcpy(padded, p, static_cast<size_t>(lanes) * sizeof(uint16_t));
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(padded));
}
inline void store_u16(void* p, __m256i bits, int lanes) {
  if (lanes == kLanes) return _mm256_storeu_si256(static_cast<__m256i*>(p), bits);
  uint16_t all[kLanes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(all), bits);
  __builtin_memcpy(p, all, static_cast<size_t>(lanes) * sizeof(uint16_t));
}

/// Loads the first `lanes` (1..16) elements from any address, widened. The other lanes are zero,
/// and their memory is not read.
inline Vec load(const float* p, int lanes = kLanes) {
  if (lanes == kLanes) return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  const Mask mask = lanes_between(0, lanes);
  return {_mm256_maskload_ps(p, mask.lo), _mm256_maskload_ps(p + 8, mask.hi)};
}
inline Vec load(const Bf16* p, int lanes = kLanes) {
  const __m256i bits = load_u16(p, lanes);
  const auto widen = [](__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  };
  return {widen(_mm256_castsi256_si128(bits)), widen(_mm256_extracti128_si256(bits, 1))};
}
inline Vec load(const F16* p, int lanes = kLanes) {
  const __m256i bits = load_u16(p, lanes);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}

/// Rounds the first `lanes` to the element type (to nearest even; NaN stays NaN) and stores them.
inline void store(float* p, Vec x, int lanes = kLanes) {
  if (lanes == kLanes) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
  } else {
    const Mask mask = lanes_between(0, lanes);
    _mm256_maskstore_ps(p, mask.lo, x.lo);
    _mm256_maskstore_ps(p + 8, mask.hi, x.hi);
  }
}
inline void store(Bf16* p, Vec x, int lanes = kLanes) {
  const auto round_bits = [](__m256 half) {
    const __m256i bits = _mm256_castps_si256(half);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(half, half, _CMP_UNORD_Q);
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
  };
  // packus leaves the 64-bit groups in the order lo hi lo hi.
  const __m256i packed = _mm256_packus_epi32(round_bits(x.lo), round_bits(x.hi));
  store_u16(p, _mm256_permute4x64_epi64(packed, 0xD8), lanes);
}
inline void store(F16* p, Vec x, int lanes = kLanes) {
  const __m128i lo = _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT);
  const __m128i hi = _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT);
  store_u16(p, _mm256_set_m128i(hi, lo), lanes);
}

/// Two weights of each output, or the two inputs that belong to them.
struct Pair {
  Vec even, odd;
};
inline __m256i load_half_of_pairs(const void* p, int half) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p) + half);
}
/// Sixteen pairs, widened, from any address.
inline Pair load_pairs(const Bf16* p) {
  const auto even = [](__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); };
  const auto odd = [](__m256i pairs) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  };
  const __m256i lo = load_half_of_pairs(p, 0), hi = load_half_of_pairs(p, 1);
  return {{even(lo), even(hi)}, {odd(lo), odd(hi)}};
}
/// The lanes have the outputs 0 1 4 5 2 3 6 7 and so on, because shuffles work within 128 bits.
/// in_order() mends that where it costs less than here.
inline Pair load_pairs(const F16* p) {
  const auto widened = [&](int quarter) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + quarter));
  };
  const __m256 a = widened(0), b = widened(1), c = widened(2), d = widened(3);
  return {{_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(c, d, 0x88)},
          {_mm256_shuffle_ps(a, b, 0xDD), _mm256_shuffle_ps(c, d, 0xDD)}};
}
/// Outputs in order, from lanes that belong to pairs of the type of the second argument.
inline Vec in_order(Vec x, F16) {
  const auto half = [](__m256 lanes) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(lanes), 0xD8));
  };
  return {half(x.lo), half(x.hi)};
}
inline Vec in_order(Vec x, Bf16) {
  return x;
}
/// One pair, widened, in every lane.
inline Pair set1_pair(const Bf16* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  const __m256i pairs = _mm256_set1_epi32(pair);
  const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  const __m256 odd = _mm256_castsi256_ps(
      _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  return {{even, even}, {odd, odd}};
}

inline __m256 low(Vec x) {
  return x.lo;
}
inline __m256 high(Vec x) {
  return x.hi;
}

}  // namespace
}  // namespace shoal::SHOAL_ISA
