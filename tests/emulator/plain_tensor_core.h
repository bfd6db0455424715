#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

/// The rule of tests/emulator/tensor_core.h in plain arithmetic: a double holds every number of it
/// exactly, from the smallest product of two bfloat16 numbers to the greatest, and every sum of
/// numbers that have been cut at a grid. It shares nothing with the emulator.
namespace shoal::plain {

/// What differs between generations.
struct Rule {
  int terms;  ///< of a sum of bfloat16; tf32 has half as many
  int fraction_bits;
  int zero_exponent;  ///< of a term that is zero
};
inline constexpr Rule kHopper{16, 25, -133}, kAmpere{8, 24, -132};

/// The exponent of the smallest normal numbers, and also of subnormals.
inline constexpr int kLeastExponent = -126;

inline double value_of(uint16_t bf16) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16));
}
/// The value that a tensor core reads from a float32 that it takes as tf32: without its last 13
/// bits.
inline double value_of(float tf32) {
  return static_cast<double>(std::bit_cast<float>(std::bit_cast<uint32_t>(tf32) & 0xffffe000));
}

inline int exponent_of(double value) {
  return value == 0 ? kLeastExponent : std::max(std::ilogb(value), kLeastExponent);
}
/// The exponent of the product a * b. It may be lower than that of any normal float.
inline int exponent_of_product(const Rule& rule, double a, double b) {
  return a == 0 || b == 0 ? rule.zero_exponent : exponent_of(a) + exponent_of(b);
}

/// Towards zero, with 24 bits or, if it is subnormal, fewer. Zero has no sign.
inline float cut_to_float(double value) {
  const int last_bit = exponent_of(value) - 23;
  const double cut = std::ldexp(std::trunc(std::ldexp(value, -last_bit)), last_bit);
  if (std::abs(cut) < std::ldexp(1.0, 128)) return static_cast<float>(cut + 0.0);
  return cut < 0 ? -INFINITY : INFINITY;
}

/// One sum of `terms` products and the addend.
template <class T>
float fused_sum(const Rule& rule, int terms, const T* a, const T* b, float addend) {
  double exact = static_cast<double>(addend);  // if it is not finite, it is right
  int most = exact == 0 ? rule.zero_exponent : exponent_of(exact);
  for (int i = 0; i < terms; ++i) {
    const double product = value_of(a[i]) * value_of(b[i]);
    exact += product;
    if (std::isfinite(product))
      most = std::max(most, exponent_of_product(rule, value_of(a[i]), value_of(b[i])));
  }
  if (std::isnan(exact)) return std::bit_cast<float>(0x7fffffffU);
  if (std::isinf(exact)) return static_cast<float>(exact);
  const int to_grid = rule.fraction_bits - most;
  double sum = 0;
  sum += std::trunc(std::ldexp(static_cast<double>(addend), to_grid));
  for (int i = 0; i < terms; ++i)
    sum += std::trunc(std::ldexp(value_of(a[i]) * value_of(b[i]), to_grid));
  return cut_to_float(std::ldexp(sum, -to_grid));
}

/// Computes what multiply_row must compute. tf32 has 8 factors where bfloat16 has 16, and a sum of
/// tf32 takes half as many terms.
template <class T>
float multiply_row(const Rule& rule, const T* a, const T* b, float sum) {
  constexpr int kFactors = sizeof(T) == 2 ? 16 : 8;
  const int terms = rule.terms * kFactors / 16;
  for (int first = 0; first < kFactors; first += terms)
    sum = fused_sum(rule, terms, a + first, b + first, sum);
  return sum;
}

/// Kinds of numbers.
enum class Draw {
  kUsual,       ///< within a few powers of two of 1
  kWide,        ///< any finite number
  kCancelling,  ///< few values of both signs, most of which cancel
  kTiny,        ///< products and sums near the smallest numbers, and zeros of both signs
  kHuge,        ///< sums that overflow, some only on their way
  kSpecial,     ///< any bits, with many NaNs, infinities and zeros
};
inline constexpr Draw kDraws[] = {Draw::kUsual, Draw::kWide, Draw::kCancelling,
                                  Draw::kTiny,  Draw::kHuge, Draw::kSpecial};

inline uint16_t draw(Draw kind, std::mt19937_64& random) {
  const uint64_t bits = random();
  const auto with_exponent = [&](uint64_t least, uint64_t count) {
    const uint64_t exponent = least + (bits >> 16) % count;
    return static_cast<uint16_t>((bits & 0x807f) | exponent << 7);
  };
  switch (kind) {
    case Draw::kUsual:
      return with_exponent(120, 12);
    case Draw::kWide:
      return with_exponent(0, 255);
    case Draw::kCancelling: {
      constexpr uint16_t kFew[] = {0x3f80, 0x3f81, 0x4000, 0x5f00, 0x3300, 0x3280, 0x0001, 0x0000};
      return static_cast<uint16_t>((bits & 0x8000) | kFew[(bits >> 16) % 8]);
    }
    case Draw::kTiny:
      if ((bits >> 32) % 4 == 0) return static_cast<uint16_t>(bits & 0x8000);
      return (bits >> 34) % 4 == 0 ? with_exponent(0, 1) : with_exponent(50, 20);
    case Draw::kHuge:
      return with_exponent(187, 6);
    case Draw::kSpecial: {
      constexpr uint16_t kFew[] = {0x7f80, 0x7fc0, 0x7f81, 0x0000, 0x0001, 0x7f7f, 0x3f80, 0x4000};
      if ((bits >> 32) % 8 != 0) return with_exponent(0, 255);
      return static_cast<uint16_t>((bits & 0x8000) | kFew[(bits >> 16) % 8]);
    }
  }
  return 0;
}

/// A factor of the same kind as tf32, with bits behind its fraction that do not count.
inline float draw_tf32(Draw kind, std::mt19937_64& random) {
  const uint32_t bits = static_cast<uint32_t>(draw(kind, random)) << 16;
  const bool finite = (bits & 0x7f800000) != 0x7f800000;
  const bool is_exact = kind == Draw::kCancelling || !finite;
  return std::bit_cast<float>(is_exact ? bits : bits | static_cast<uint32_t>(random() & 0xffff));
}

/// An addend of the same kind, with more bits than a factor has.
inline float draw_addend(Draw kind, std::mt19937_64& random) {
  const auto scale = kind == Draw::kHuge ? 60.0 : kind == Draw::kTiny ? -60.0 : 0.0;
  const double product = value_of(draw(kind, random)) * std::exp2(scale);
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(product));
  const bool finite = (bits & 0x7f800000) != 0x7f800000;
  return std::bit_cast<float>(finite ? bits ^ static_cast<uint32_t>(random() & 0xffff) : bits);
}

}  // namespace shoal::plain
