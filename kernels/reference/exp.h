#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace shoal::reference {

/// 2^n for n in [-126, 127].
inline float power_of_two(int n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

/// exp(x), the same steps as in kernels/cpu/vec.h for one number, so that both give the same bits.
/// The library's exponential would differ, because each library rounds in its own way.
inline float exp(float x) {
  if (x != x) return x;
  x = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
  const float n = std::nearbyint(x * 0x1.715476p+0f);
  const float r = std::fma(-n, -0x1.05c610p-29f, std::fma(-n, 0x1.62e430p-1f, x));
  float p = 1.0f / 5040;
  for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = std::fma(p, r, factor);
  // In two factors, because 2^n alone may not be a float32.
  const int exponent = static_cast<int>(n), first = exponent >> 1;
  return p * power_of_two(first) * power_of_two(exponent - first);
}

}  // namespace shoal::reference
