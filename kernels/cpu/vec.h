#pragma once
#include <cstdint>

#include "kernels/cpu/lanes.h"
#include "runtime/base/dtype.h"

#if defined(__x86_64__)
#include "kernels/cpu/vec_x86.h"
#else
#include "kernels/cpu/vec_neon.h"
#endif

// Sixteen float32 lanes in every instruction set: one register of 512 bits, two of 256 or four of
// 128. The files of this folder are written once on top of this and compiled once per kernel set
// (kernels/CMakeLists.txt). Every operation is one that IEEE 754 rounds in one way only, and every
// set does the same ones in the same order, so that all sets give the same bits.
//
// Everything here has internal linkage, and these files use no std containers or algorithms.
// Otherwise a function with a common name that was compiled with AVX-512 could be linked into the
// rest of the program, and end it with SIGILL on an older processor (tests/kernels/isa_symbols
// checks this).

namespace shoal::SHOAL_ISA {
namespace {

/// Two inputs that belong to a pair of weights, each in every lane.
inline Pair set1_pair(const float* p) {
  return {set1(p[0]), set1(p[1])};
}

/// exp(x) within 2 ulp. It is 0 below about -87.3, because a smaller result would be subnormal and
/// is flushed, infinity from 88.73 up, and NaN for NaN. The kernel sets use no other exponential,
/// neither for whole vectors nor for masked tails, and kernels/reference/exp.h is the same steps
/// for one number. x = n ln2 + r with |r| <= ln2 / 2. exp(r) is its Taylor polynomial of degree 7,
/// whose remainder is below 1e-8. ln2 is split into its float32 value and the rest, and each
/// product is subtracted with one rounding.
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
