#include "runtime/base/dtype.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>

namespace shoal {
namespace {

/// Checks that `bits` is the 16-bit value nearest to `value`, and the even one of two that are
/// equally near.
void expect_nearest(float value, uint16_t bits, float (*widen)(uint16_t)) {
  const double got = widen(bits);
  const double error = std::fabs(got - value);
  for (const int step : {-1, 1}) {
    const uint16_t other_bits = static_cast<uint16_t>(bits + step);
    const double other = widen(other_bits);
    if (!std::isfinite(other) || std::signbit(other) != std::signbit(got)) continue;
    const double other_error = std::fabs(other - value);
    EXPECT_TRUE(error < other_error || (error == other_error && (bits & 1) == 0))
        << value << " became " << got << ", not " << other;
  }
}

TEST(DtypeTest, NamesReadBack) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_EQ(parse_dtype("torch." + std::string(dtype_name(dtype))), dtype);
  }
  EXPECT_EQ(parse_dtype("F32"), Dtype::kF32);
  EXPECT_EQ(parse_dtype("F16"), Dtype::kF16);
  EXPECT_EQ(parse_dtype("BF16"), Dtype::kBf16);
  for (const char* name : {"", "torch.", "float64", "F8_E4M3", "bf16x", "I64"})
    EXPECT_FALSE(parse_dtype(name)) << name;
  EXPECT_EQ(dtype_bytes(Dtype::kF32), 4u);
  EXPECT_EQ(dtype_bytes(Dtype::kF16), 2u);
  EXPECT_EQ(dtype_bytes(Dtype::kBf16), 2u);
}

TEST(DtypeTest, Every16BitValueSurvivesWideningAndNarrowing) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float from_f16 = f16_to_float(narrow);
    const float from_bf16 = bf16_to_float(narrow);
    if (std::isnan(from_f16)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(from_f16))));
    } else {
      EXPECT_EQ(float_to_f16(from_f16), narrow);
    }
    if (std::isnan(from_bf16)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(from_bf16))));
    } else {
      EXPECT_EQ(float_to_bf16(from_bf16), narrow);
    }
  }
}

TEST(DtypeTest, KnownValues) {
  EXPECT_EQ(float_to_f16(1.0f), 0x3C00);
  EXPECT_EQ(float_to_f16(-2.0f), 0xC000);
  EXPECT_EQ(float_to_f16(65504.0f), 0x7BFF);  // the largest finite value
  EXPECT_EQ(float_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7C00);  // halfway to the next value, so it rounds to infinity
  EXPECT_EQ(float_to_f16(std::ldexp(1.0f, -24)), 0x0001);
  EXPECT_EQ(float_to_f16(std::ldexp(1.0f, -25)), 0x0000);  // a tie, which rounds to even
  EXPECT_EQ(float_to_f16(std::ldexp(1.5f, -25)), 0x0001);
  EXPECT_EQ(float_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(float_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // a tie, to even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::infinity()), 0xFF80);
  EXPECT_EQ(f16_to_float(0x7C00), std::numeric_limits<float>::infinity());
  // A NaN stays a NaN even if its payload is in the bits that are cut off.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(std::bit_cast<float>(0xFF800001u)))));
}

TEST(DtypeTest, RoundsToNearestEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 200'000; ++i) {
    // The exponents cover the whole range of f16 and a little more, with subnormals and overflow.
    // Half of the values are exact ties.
    uint32_t bits = (100u + static_cast<uint32_t>(random() % 44)) << 23 | (random() & 0x807FFFFFu);
    if (i % 2 == 0) bits = (bits & ~0x1FFFu) | 0x1000u;
    const float value = std::bit_cast<float>(bits);
    if (std::fabs(value) < 65520.0f) expect_nearest(value, float_to_f16(value), f16_to_float);
    if (i % 2 == 0) bits = (bits & ~0xFFFFu) | 0x8000u;
    expect_nearest(std::bit_cast<float>(bits), float_to_bf16(std::bit_cast<float>(bits)),
                   bf16_to_float);
  }
}

}  // namespace
}  // namespace shoal
