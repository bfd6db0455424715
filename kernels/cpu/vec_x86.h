#pragma once
#if defined(__AVX512F__)
#include "kernels/cpu/vec_avx512.h"
#else
#include "kernels/cpu/vec_avx2.h"
#endif

// What both vectors of x86 do with their halves.

namespace shoal::SHOAL_ISA {
namespace {

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

}  // namespace
}  // namespace shoal::SHOAL_ISA
