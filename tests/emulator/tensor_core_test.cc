#include "tests/emulator/tensor_core.h"

#include <array>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/dtype.h"
#include "tests/emulator/conversions.h"
#include "tests/emulator/plain_tensor_core.h"

namespace shoal::emulator {
namespace {

constexpr TensorCore kHopper{16, 25, -133}, kAmpere{8, 24, -132};
/// Both, with their plain rules.
constexpr std::pair<TensorCore, plain::Rule> kGenerations[] = {{kHopper, plain::kHopper},
                                                               {kAmpere, plain::kAmpere}};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

/// Only for numbers that a bfloat16 holds exactly.
uint16_t narrowed(float value) {
  EXPECT_EQ(bits_of(value) & 0xffff, 0U) << value;
  return static_cast<uint16_t>(bits_of(value) >> 16);
}

float two_to(int exponent) {
  return std::ldexp(1.0F, exponent);
}

struct Row {
  uint16_t a[16] = {};
  uint16_t b[16] = {};
};

/// Factors by their place in the row. All others are zero.
using Factors = std::vector<std::pair<int, std::pair<float, float>>>;
Row row_of(const Factors& factors) {
  Row row;
  for (const auto& [place, pair] : factors) {
    row.a[place] = narrowed(pair.first);
    row.b[place] = narrowed(pair.second);
  }
  return row;
}

float chain_of_fma(const Row& row, float sum) {
  for (int i = 0; i < 16; ++i)
    sum = std::fma(static_cast<float>(plain::value_of(row.a[i])),
                   static_cast<float>(plain::value_of(row.b[i])), sum);
  return sum;
}

TEST(TensorCoreTest, EachGenerationHasItsModel) {
  for (const int major : {8, 9, 10, 12}) {
    const TensorCore core = tensor_core_of(major);
    EXPECT_EQ(core.terms, major == 8 ? 8 : 16);
    EXPECT_EQ(core.fraction_bits, major == 8 ? 24 : 25);
    EXPECT_EQ(core.zero_exponent, major == 8 ? -132 : -133);
  }
}

TEST(TensorCoreTest, FollowsThePlainRuleInAllKindsOfRows) {
  std::mt19937_64 random(1);
  for (const plain::Draw kind : plain::kDraws) {
    for (int i = 0; i < 8000; ++i) {
      Row row;
      for (int k = 0; k < 16; ++k) {
        row.a[k] = plain::draw(kind, random);
        row.b[k] = plain::draw(kind, random);
      }
      const float sum = plain::draw_addend(kind, random);
      for (const auto& [core, rule] : kGenerations) {
        const float plainly = plain::multiply_row(rule, row.a, row.b, sum);
        ASSERT_EQ(bits_of(multiply_row(core, row.a, row.b, sum)), bits_of(plainly))
            << "kind " << static_cast<int>(kind) << ", row " << i << ", " << core.terms << " terms";
      }
    }
  }
}

TEST(TensorCoreTest, FollowsThePlainRuleForTf32) {
  std::mt19937_64 random(4);
  for (const plain::Draw kind : plain::kDraws) {
    for (int i = 0; i < 8000; ++i) {
      float a[8], b[8];
      for (int k = 0; k < 8; ++k) {
        a[k] = plain::draw_tf32(kind, random);
        b[k] = plain::draw_tf32(kind, random);
      }
      const float sum = plain::draw_addend(kind, random);
      for (const auto& [core, rule] : kGenerations) {
        const float plainly = plain::multiply_row(rule, a, b, sum);
        ASSERT_EQ(bits_of(multiply_row(core, a, b, sum)), bits_of(plainly))
            << "kind " << static_cast<int>(kind) << ", row " << i << ", " << core.terms << " terms";
      }
    }
  }
}

TEST(TensorCoreTest, SumsHalfAsManyTermsOfTf32) {
  const float least = 1 + two_to(-10);  // has all of a factor's bits
  const float a[8] = {1, two_to(-25), 0, 0, -1, 0, 0, 0}, ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(multiply_row(kHopper, a, ones, 0), two_to(-25));
  EXPECT_EQ(multiply_row(kAmpere, a, ones, 0), 0);  // four terms, and a grid of 24 bits
  const float squares[8] = {least};
  EXPECT_EQ(multiply_row(kHopper, squares, squares, 0), least * least);
  const float more[8] = {1 + two_to(-11)};
  EXPECT_EQ(multiply_row(kHopper, more, ones, 0), 1);  // bits behind those of tf32 are not read
}

TEST(ConversionsTest, WidenAndNarrowFloat16) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float value = widened_f16(bits);
    ASSERT_EQ(std::isnan(value), (bits & 0x7fff) > 0x7c00) << bits;
    if (std::isnan(value)) continue;
    ASSERT_EQ(bits_of(value), bits_of(f16_to_float(bits))) << bits;
    ASSERT_EQ(narrowed_f16(value), bits);
    // Numbers between this one and the next, the middle among them.
    for (const uint32_t more : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x1fffU}) {
      const float near = std::bit_cast<float>(bits_of(value) + more);
      if (std::isnan(near)) continue;
      ASSERT_EQ(narrowed_f16(near), float_to_f16(near)) << bits << " " << more;
    }
  }
  std::mt19937_64 random(5);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(narrowed_f16(value), float_to_f16(value)) << value;
  }
  EXPECT_TRUE(std::isnan(widened_f16(narrowed_f16(std::nanf("")))));
}

TEST(ConversionsTest, NarrowsToBfloat16FromTheMiddleToEven) {
  const std::vector<std::pair<uint32_t, uint32_t>> cases = {
      {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
      {0xbf818000, 0xbf82}, {0x3fff8000, 0x4000}, {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80},
      {0x00008001, 0x0001}, {0x80000000, 0x8000}, {0xff800000, 0xff80}, {0x7f800001, 0x7fff},
      {0xffc12345, 0x7fff},
  };
  for (const auto& [value, narrowed] : cases)
    EXPECT_EQ(narrowed_bf16(std::bit_cast<float>(value)), narrowed) << value;
}

TEST(ConversionsTest, RoundsToTf32FromTheMiddleAwayFromZero) {
  const std::vector<std::pair<uint32_t, uint32_t>> cases = {
      {0x3f800000, 0x3f800000},
      {0x3f800fff, 0x3f800000},
      {0x3f801000, 0x3f802000},
      {0xbf801000, 0xbf802000},
      {0x3ffff000, 0x40000000},
      {0x7f7fffff, 0x7f800000},
      {0x00001000, 0x00002000},
      {0xff800000, 0xff800000},
      {0x80000000, 0x80000000},
      // From here on as an H200 gave them.
      {0x7f7ff000, 0x7f800000},
      {0x7f7fefff, 0x7f7fe000},
      {0x7f800001, 0x7f800000},
      {0x7f801fff, 0x7f800000},
      {0x7f802000, 0x7f802000},
      {0x7fbfffff, 0x7fbfe000},
      {0x7fffffff, 0x7fffe000},
      {0xff800001, 0xff800000},
      {0xff802345, 0xff802000},
      {0xffffffff, 0xffffe000},
  };
  for (const auto& [value, rounded] : cases)
    EXPECT_EQ(rounded_tf32(std::bit_cast<float>(value)), rounded) << value;
}

TEST(ConversionsTest, TheGreaterOfTwoAsADeviceHasIt) {
  constexpr uint32_t kOne = 0x3f800000, kMinus = 0xbf800000, kZero = 0, kMinusZero = 0x80000000,
                     kNan = 0x7fc00000, kOtherNan = 0xffc12345, kHidden = 0xff800000;
  // The last three have subnormals, which count as zeros.
  const std::vector<std::array<uint32_t, 3>> cases = {{kOne, kMinus, kOne},
                                                      {kMinus, 0xbf800001, kMinus},
                                                      {kHidden, kMinus, kMinus},
                                                      {kHidden, 0x7f800000, 0x7f800000},
                                                      {kZero, kMinusZero, kZero},
                                                      {kMinusZero, kMinusZero, kMinusZero},
                                                      {kNan, kMinus, kMinus},
                                                      {kOtherNan, kHidden, kHidden},
                                                      {kNan, kOtherNan, 0x7fffffff},
                                                      {0x00000001, kMinusZero, kZero},
                                                      {0x80000001, kMinus, kMinusZero},
                                                      {0x007fffff, 0x00800000, 0x00800000}};
  for (const auto& [a, b, greater] : cases) {
    const float of_a = std::bit_cast<float>(a), of_b = std::bit_cast<float>(b);
    EXPECT_EQ(bits_of(greater_of(of_a, of_b)), greater) << a << " " << b;
    EXPECT_EQ(bits_of(greater_of(of_b, of_a)), greater) << b << " " << a;
  }
}

/// A row, and what it gives on either tensor core and as a chain of float32 operations.
struct Case {
  std::string what;
  Factors factors;
  float sum;
  float hopper, ampere, chain;
};

void expect_cases(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const Row row = row_of(one.factors);
    EXPECT_EQ(bits_of(multiply_row(kHopper, row.a, row.b, one.sum)), bits_of(one.hopper))
        << one.what;
    EXPECT_EQ(bits_of(multiply_row(kAmpere, row.a, row.b, one.sum)), bits_of(one.ampere))
        << one.what;
    EXPECT_EQ(bits_of(chain_of_fma(row, one.sum)), bits_of(one.chain)) << one.what;
  }
}

TEST(TensorCoreTest, TellsTheModelsApart) {
  const float tiny = two_to(-25);
  expect_cases({
      {"the grid of 25 bits holds what comes first, that of 24 cuts it",
       {{0, {tiny, 1}}, {1, {1, 1}}, {2, {-1, 1}}},
       0,
       tiny,
       0,
       0},
      {"a chain also holds what comes last",
       {{0, {1, 1}}, {1, {-1, 1}}, {2, {tiny, 1}}},
       0,
       tiny,
       0,
       tiny},
      {"the second half of eight starts from a float32, which cannot hold the small term",
       {{0, {1, 1}}, {1, {two_to(-24), 1}}, {8, {-1, 1}}},
       0,
       two_to(-24),
       0,
       0},
      {"the sum is cut, and a chain's is rounded",
       {{0, {1.5F * two_to(-24), 1}}},
       1,
       1,
       1,
       1 + two_to(-23)},
      {"towards zero on the other side too",
       {{0, {-1.5F * two_to(-24), 1}}},
       -1,
       -1,
       -1,
       -1 - two_to(-23)},
      {"the addend is cut at the grid like a product",
       {{0, {two_to(10), 1}}, {1, {-two_to(10), 1}}},
       1 + two_to(-20),
       1,
       1,
       1},
  });
}

TEST(TensorCoreTest, TakesTheExponentsOfTheFactors) {
  expect_cases({
      {"1.5 * 1.5 has the exponent 0, although it is more than 2",
       {{0, {1.5F, 1.5F}}, {1, {-1.5F, 1.5F}}, {2, {two_to(-25), 1}}},
       0,
       two_to(-25),
       0,
       two_to(-25)},
      {"so with one bit more the other model holds it too",
       {{0, {1.5F, 1.5F}}, {1, {-1.5F, 1.5F}}, {2, {two_to(-24), 1}}},
       0,
       two_to(-24),
       two_to(-24),
       two_to(-24)},
      {"a product of zero has no exponent, whatever its other factor is",
       {{0, {two_to(127), 0}}, {1, {two_to(-40), two_to(-40)}}},
       0,
       two_to(-80),
       two_to(-80),
       two_to(-80)},
  });
}

TEST(TensorCoreTest, OverflowsOnlyAtTheEnd) {
  const float large = two_to(64);
  expect_cases({
      {"products may be greater than any float32",
       {{0, {large, large}}, {1, {-two_to(127), 1}}},
       0,
       two_to(127),
       two_to(127),
       kInfinity},
      {"a sum that is greater is infinite",
       {{0, {large, large}}},
       0,
       kInfinity,
       kInfinity,
       kInfinity},
      {"of either sign", {{0, {-large, large}}}, 0, -kInfinity, -kInfinity, -kInfinity},
      {"the greatest float32 stays finite if nothing remains above the cut",
       {{0, {two_to(100), 1}}},
       std::numeric_limits<float>::max(),
       std::numeric_limits<float>::max(),
       std::numeric_limits<float>::max(),
       std::numeric_limits<float>::max()},
      {"eight terms end in infinity, before the other eight can cancel it",
       {{0, {large, large}}, {8, {-two_to(127), 1}}},
       0,
       two_to(127),
       kInfinity,
       kInfinity},
  });
}

TEST(TensorCoreTest, HasSubnormals) {
  const float least = std::numeric_limits<float>::denorm_min();
  expect_cases({
      {"a factor", {{0, {two_to(-130), 1}}}, 0, two_to(-130), two_to(-130), two_to(-130)},
      {"a product",
       {{0, {two_to(-126), two_to(-10)}}},
       0,
       two_to(-136),
       two_to(-136),
       two_to(-136)},
      {"an addend", {{0, {two_to(-126), two_to(-23)}}}, least, 2 * least, 2 * least, 2 * least},
      {"half of the least one is cut", {{0, {two_to(-75), two_to(-75)}}}, 0, 0, 0, 0},
      {"two halves are one on a grid that has halves",
       {{0, {two_to(-75), two_to(-75)}}, {1, {two_to(-75), two_to(-75)}}},
       0,
       least,
       least,
       0},
  });
}

/// So many products of 2^exponent, and the addend.
float sum_of_equals(const TensorCore& core, int count, int exponent, float addend) {
  Factors factors;
  for (int i = 0; i < count; ++i)
    factors.push_back({i, {two_to(exponent / 2), two_to(exponent - exponent / 2)}});
  const Row row = row_of(factors);
  return multiply_row(core, row.a, row.b, addend);
}

TEST(TensorCoreTest, HasAFinestGrid) {
  const float least = std::numeric_limits<float>::denorm_min();
  // A term that is zero, here the addend, has a place on it: the grid ends at 2^-158 or 2^-156.
  EXPECT_EQ(sum_of_equals(kHopper, 16, -152, 0), 2 * least);
  EXPECT_EQ(sum_of_equals(kAmpere, 8, -151, 0), 2 * least);
  EXPECT_EQ(sum_of_equals(kHopper, 16, -153, 0), least);
  EXPECT_EQ(sum_of_equals(kAmpere, 8, -152, 0), least);
  // A subnormal addend has the exponent of the smallest normal number, and so a coarser grid.
  EXPECT_EQ(sum_of_equals(kHopper, 16, -152, least), least);
  EXPECT_EQ(sum_of_equals(kAmpere, 8, -151, least), least);
}

TEST(TensorCoreTest, HasNoNegativeZero) {
  Factors negative_zeros;
  for (int i = 0; i < 16; ++i) negative_zeros.push_back({i, {-0.0F, 1}});
  expect_cases({
      {"negative zeros", negative_zeros, -0.0F, 0, 0, -0.0F},
      {"zeros", {{0, {-0.0F, 1}}, {1, {0.0F, -1}}}, -0.0F, 0, 0, 0},
      {"what cancels", {{0, {1, 1}}}, -1, 0, 0, 0},
      {"what is cut at the end", {{15, {-two_to(-75), two_to(-75)}}}, 0, 0, 0, -0.0F},
  });
}

TEST(TensorCoreTest, HasOneNan) {
  const float nan = std::bit_cast<float>(0x7fffffffU);
  const std::vector<std::pair<Factors, float>> cases = {
      {{{3, {std::bit_cast<float>(0xffc10000U), 1}}}, nan},
      {{{3, {kInfinity, 0}}}, nan},
      {{{3, {-0.0F, -kInfinity}}}, nan},
      {{{3, {kInfinity, 1}}, {12, {-kInfinity, 1}}}, nan},
      {{{3, {kInfinity, 1}}, {12, {kInfinity, 1}}}, kInfinity},
      {{{3, {kInfinity, -two_to(-133)}}}, -kInfinity},
      {{{3, {two_to(100), two_to(100)}}, {4, {-kInfinity, 1}}}, -kInfinity},
      {{{3, {two_to(100), two_to(100)}}, {4, {-two_to(100), two_to(100)}}, {15, {kInfinity, 2}}},
       kInfinity},
  };
  for (const auto& [factors, result] : cases) {
    const Row row = row_of(factors);
    for (const TensorCore& core : {kHopper, kAmpere})
      EXPECT_EQ(bits_of(multiply_row(core, row.a, row.b, 1)), bits_of(result)) << result;
  }
  const Row one = row_of({{0, {1, 1}}});
  EXPECT_EQ(bits_of(multiply_row(kHopper, one.a, one.b, std::bit_cast<float>(0xff800001U))),
            bits_of(nan));
  EXPECT_EQ(multiply_row(kHopper, one.a, one.b, -kInfinity), -kInfinity);
}

}  // namespace
}  // namespace shoal::emulator
