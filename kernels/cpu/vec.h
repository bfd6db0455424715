#pragma once
#include <cstdint>
#include <immintrin.h>

#include "runtime/base/dtype.h"

// Sixteen float32 lanes in every instruction set: one 512-bit register, or two of 256 bits. The
// files of this folder are written once on top of this and compiled once per kernel set
// (kernels/CMakeLists.txt).
//
// Everything here has internal linkage, and these files use no std containers or algorithms.
// Otherwise a function with a common name that was compiled with AVX-512 could be linked into the
// rest of the program, and end it with SIGILL on an older processor (tests/kernels/isa_symbols
// checks this).

namespace shoal::SHOAL_ISA {
namespace {

inline constexpr int kLanes = 16;

/// Elements of two bytes. They are structs so that functions can be overloaded for each.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

#if defined(__AVX512F__)

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

inline __m256 low(Vec x) {
  return _mm512_castps512_ps256(x.v);
}
inline __m256 high(Vec x) {
  return _mm512_extractf32x8_ps(x.v, 1);
}

#else  // AVX2

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

inline __m256 low(Vec x) {
  return x.lo;
}
inline __m256 high(Vec x) {
  return x.hi;
}

#endif

/// The sum of all lanes, always in this order: lane i with i + 8, then with i + 4, i + 2, i + 1.
inline float sum_of(Vec x) {
  const __m256 eight = _mm256_add_ps(low(x), high(x));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_of(Vec x) {
  const __m256 eight = _mm256_max_ps(low(x), high(x));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/// exp(x) within 2 ulp: 0 from -104 down, infinity from 89 up, NaN for NaN. These kernel sets use
/// no other exponential, neither for whole vectors nor for masked tails. x = n ln2 + r with |r| <=
/// ln2 / 2. exp(r) is its Taylor polynomial of degree 7, whose remainder is below 1e-8. ln2 is
/// split into its float32 value and the rest, and each product is subtracted with one rounding.
inline Vec exp(Vec x) {
  x = min(set1(89.0f), max(set1(-104.0f), x));
  const Vec n = round(mul(x, set1(0x1.715476p+0f)));
  const Vec r = fnma(n, set1(-0x1.05c610p-29f), fnma(n, set1(0x1.62e430p-1f), x));
  Vec p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return scale_by_power(p, n);
}

/// Calls body(i, lanes) for i = 0, 16, 32, ... below count. lanes is 16, except that the last call
/// gets what is left.
template <typename Body>
inline void for_lanes(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

/// Calls body with `data` as a pointer to elements of dtype (float, Bf16 or F16).
template <typename Body>
inline void as_elements(const void* data, Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kF32:
      return body(static_cast<const float*>(data));
    case Dtype::kBf16:
      return body(static_cast<const Bf16*>(data));
    case Dtype::kF16:
      return body(static_cast<const F16*>(data));
  }
}
template <typename Body>
inline void as_elements(void* data, Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kF32:
      return body(static_cast<float*>(data));
    case Dtype::kBf16:
      return body(static_cast<Bf16*>(data));
    case Dtype::kF16:
      return body(static_cast<F16*>(data));
  }
}

}  // namespace
}  // namespace shoal::SHOAL_ISA
