#pragma once
#include <immintrin.h>

#include "kernels/cpu/lanes.h"

// The vector of kernels/cpu/vec.h as one 512-bit register.

namespace shoal::SHOAL_ISA {
namespace {

struct Vec {
  __m512 v;
};
using Mask = __mmask16;

inline Vec zero() {
  return {_mm512_setzero_ps()};
}
inline Vec set1(float x) {
  return {_mm512_set1_ps(x)};
}
inline Vec add(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec sub(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec mul(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec div(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
/// Returns b if either is NaN.
inline Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
/// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
/// c - a * b, rounded once.
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
inline Vec round(Vec x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// p * 2^n for integral n in [-252, 252].
inline Vec scale_by_power(Vec p, Vec n) {
  return {_mm512_scalef_ps(p.v, n.v)};
}

/// Lanes [begin, end). The bounds may be outside of 0..16.
inline Mask lanes_between(int begin, int end) {
  const auto below = [](int n) { return n <= 0 ? 0u : n >= kLanes ? 0xFFFFu : (1u << n) - 1; };
  return static_cast<Mask>(below(end) & ~below(begin));
}
/// a if the mask is set, else b.
inline Vec select(Mask mask, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(mask, b.v, a.v)};
}
/// Bit i is set if a[i] == b[i].
inline uint32_t equal_bits(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}

inline __m256i load_u16(const void* p, int lanes) {
  if (lanes == kLanes) return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return _mm256_maskz_loadu_epi16(lanes_between(0, lanes), p);
}
inline void store_u16(void* p, __m256i bits, int lanes) {
  if (lanes == kLanes) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), bits);
  } else {
    _mm256_mask_storeu_epi16(p, lanes_between(0, lanes), bits);
  }
}

/// Loads the first `lanes` (1..16) elements from any address, widened. The other lanes are zero,
/// and their memory is not read.
inline Vec load(const float* p, int lanes = kLanes) {
  if (lanes == kLanes) return {_mm512_loadu_ps(p)};
  return {_mm512_maskz_loadu_ps(lanes_between(0, lanes), p)};
}
inline Vec load(const Bf16* p, int lanes = kLanes) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_u16(p, lanes)), 16))};
}
inline Vec load(const F16* p, int lanes = kLanes) {
  return {_mm512_cvtph_ps(load_u16(p, lanes))};
}

/// Rounds the first `lanes` to the element type (to nearest even; NaN stays NaN) and stores them.
inline void store(float* p, Vec x, int lanes = kLanes) {
  if (lanes == kLanes) {
    _mm512_storeu_ps(p, x.v);
  } else {
    _mm512_mask_storeu_ps(p, lanes_between(0, lanes), x.v);
  }
}
inline void store(Bf16* p, Vec x, int lanes = kLanes) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  store_u16(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)), lanes);
}
inline void store(F16* p, Vec x, int lanes = kLanes) {
  store_u16(p, _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT), lanes);
}

/// Two weights of each output, or the two inputs that belong to them.
struct Pair {
  Vec even, odd;
};
/// Sixteen pairs, widened, from any address.
inline Pair load_pairs(const Bf16* p) {
  const __m512i pairs = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
          {_mm512_castsi512_ps(
              _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))}};
}
inline Pair load_pairs(const F16* p) {
  const auto widened = [&](int half) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + half));
  };
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 a = widened(0), b = widened(1);
  return {{_mm512_permutex2var_ps(a, even, b)}, {_mm512_permutex2var_ps(a, odd, b)}};
}
/// Outputs in order, from lanes that belong to such pairs.
template <typename Element>
inline Vec in_order(Vec x, Element) {
  return x;
}
/// One pair, widened, in every lane.
inline Pair set1_pair(const Bf16* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  const __m512i pairs = _mm512_set1_epi32(pair);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
          {_mm512_castsi512_ps(
              _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))}};
}

inline __m256 low(Vec x) {
  return _mm512_castps512_ps256(x.v);
}
inline __m256 high(Vec x) {
  return _mm512_extractf32x8_ps(x.v, 1);
}

}  // namespace
}  // namespace shoal::SHOAL_ISA
