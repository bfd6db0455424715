#pragma once
#include <bit>
#include <cstdint>

/// A device's conversions between floating-point types, and its maximum, by their bits, because the
/// processor flushes subnormals while kernels run. Kernels include this, so no header of a libm is
/// included here: a call of one in a kernel does not compile.
namespace shoal::emulator {

/// cvt.f32.f16
inline float widened_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  // A whole number of 2^-24, which is normal in float32.
  const float size = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(size));
}

/// cvt.rn.f16.f32: to nearest even. There is one NaN.
inline uint16_t narrowed_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return 0x7fff;
  if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  // Bits of the fraction that fall off: 13, and one more for each power of two below 2^-14.
  const int exponent = static_cast<int>(size >> 23);
  const int lost = exponent >= 113 ? 13 : 126 - exponent;
  if (lost > 24) return sign;
  const uint32_t whole = exponent >= 113 ? size - (112U << 23) : (size & 0x7fffff) | 0x800000;
  const uint32_t half = 1U << (lost - 1);
  const uint32_t rounded = whole + half - 1 + (whole >> lost & 1);
  return static_cast<uint16_t>(sign | rounded >> lost);
}

/// cvt.rn.bf16x2.f32, of one of the two: to nearest even. There is one NaN.
inline uint16_t narrowed_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// cvt.rna.tf32.f32: to nearest, and of two that are equally near to the one away from zero. An
/// H200 only cuts off the low bits of a NaN, so that one without higher bits becomes infinity. No
/// computed NaN is of that kind.
inline uint32_t rounded_tf32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return (is_nan ? bits : bits + 0x1000) & 0xffffe000;
}

/// max.ftz.f32: of a number and NaN the number, of two NaN the one NaN of a device, and of two
/// zeros +0 if one of them is. Subnormals count as zeros.
inline float greater_of(float a, float b) {
  const auto flushed = [](float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    return (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits;
  };
  const auto is_nan = [](uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; };
  // In the order of the numbers, -0 before +0.
  const auto place = [](uint32_t bits) {
    const auto size = static_cast<int64_t>(bits & 0x7fffffff);
    return (bits & 0x80000000) == 0 ? size : -size - 1;
  };
  const uint32_t of_a = flushed(a), of_b = flushed(b);
  if (is_nan(of_a)) return std::bit_cast<float>(is_nan(of_b) ? 0x7fffffffU : of_b);
  return std::bit_cast<float>(is_nan(of_b) || place(of_a) > place(of_b) ? of_a : of_b);
}

}  // namespace shoal::emulator
