#pragma once
#include <cmath>

namespace shoal::reference {

/// The vectors of kernels/cpu have this many lanes. To sum a row, each lane sums its own elements.
/// Then the sums of the lanes are added in one fixed order. The order is part of the contract,
/// because another order gives other bits.
inline constexpr int kLanes = 16;

/// Adds 16 sums: lane i with i + 8, then with i + 4, i + 2 and i + 1. Destroys them.
inline float sum_of_lanes(float* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// Adds 64 sums: the four of each lane as (0 + 1) + (2 + 3), then the lanes. Destroys them.
inline float sum_of_four_vectors(float* sums) {
  for (int i = 0; i < kLanes; ++i) {
    sums[i] = (sums[i] + sums[kLanes + i]) + (sums[2 * kLanes + i] + sums[3 * kLanes + i]);
  }
  return sum_of_lanes(sums);
}

/// Returns 1 / sqrt(mean(x^2) + eps) of cols values. Element i is summed in lane i mod 64.
inline float inverse_rms(const float* x, int cols, float eps) {
  float sums[4 * kLanes] = {};
  for (int i = 0; i < cols; ++i) {
    float& sum = sums[i % (4 * kLanes)];
    sum = std::fma(x[i], x[i], sum);
  }
  return 1.0f / std::sqrt(sum_of_four_vectors(sums) / static_cast<float>(cols) + eps);
}

}  // namespace shoal::reference
