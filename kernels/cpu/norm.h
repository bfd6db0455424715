#pragma once
#include "kernels/cpu/vec.h"

namespace shoal::SHOAL_ISA {
namespace {

/// Returns 1 / sqrt(mean(x^2) + eps) of cols values. The squares are summed in 64 lanes (element i
/// in lane i mod 64), which are then added in one fixed order, so the result depends on the values
/// alone.
inline float inverse_rms(const float* x, int cols, float eps) {
  constexpr int kSums = 4;
  Vec sums[kSums] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + kSums * kLanes <= cols; i += kSums * kLanes) {
    for (int j = 0; j < kSums; ++j) {
      const Vec v = load(x + i + j * kLanes);
      sums[j] = fma(v, v, sums[j]);
    }
  }
  for (int j = 0; i < cols; ++j, i += kLanes) {
    const Vec v = load(x + i, cols - i < kLanes ? cols - i : kLanes);
    sums[j] = fma(v, v, sums[j]);
  }
  const float squares = sum_of(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
}

}  // namespace
}  // namespace shoal::SHOAL_ISA
