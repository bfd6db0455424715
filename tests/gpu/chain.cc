#include "tests/gpu/chain.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace shoal::gpu {
float rounded_to_tf32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // A NaN is cut, and becomes infinity if nothing is left of its fraction.
  return std::bit_cast<float>((std::isnan(value) ? bits : bits + 0x1000) & 0xffffe000);
}

float chain_sum(const emulator::TensorCore& core, Dtype type, const float* a, const float* b,
                int count) {
  float sum = 0;
  if (type == Dtype::kF32) {
    for (int k = 0; k < count; ++k) sum = std::fma(a[k], b[k], sum);
    return sum;
  }
  if (type == Dtype::kF16) {
    for (int k = 0; k < count; k += 8) {
      float left[8] = {}, right[8] = {};
      for (int i = 0; i < std::min(8, count - k); ++i) {
        left[i] = rounded_to_tf32(a[k + i]);
        right[i] = rounded_to_tf32(b[k + i]);
      }
      sum = emulator::multiply_row(core, left, right, sum);
    }
    return sum;
  }
  for (int k = 0; k < count; k += 16) {
    uint16_t left[16] = {}, right[16] = {};
    for (int i = 0; i < std::min(16, count - k); ++i) {
      left[i] = float_to_bf16(a[k + i]);
      right[i] = float_to_bf16(b[k + i]);
    }
    sum = emulator::multiply_row(core, left, right, sum);
  }
  return sum;
}

}  // namespace shoal::gpu
