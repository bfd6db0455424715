#include "runtime/base/ieee_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr int kCount = 1'000'000, kBlock = 1000;

/// The numbers of tests/data/ieee_math/make.py.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint32_t next() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<uint32_t>(state_ >> 32);
  }

 private:
  uint64_t state_;
};

/// The arguments of make.py: any size, a position times a frequency, next to a multiple of pi/2, a
/// position.
float angle(Numbers& numbers, int index) {
  const uint32_t a = numbers.next(), b = numbers.next();
  switch (index % 4) {
    case 0: {
      const double size = std::ldexp(1 + (b >> 9) * 0x1p-23, static_cast<int>(a / 2 % 50) - 24);
      return static_cast<float>(a % 2 == 1 ? -size : size);
    }
    case 1:
      return static_cast<float>(a % 10'000'000) * (static_cast<float>(b >> 8) * 0x1p-24f);
    case 2:
      return static_cast<float>(a % (1u << 25) * 1.5707963267948966);
    default:
      return static_cast<float>(a % 10'000'000);
  }
}

float power(Numbers& numbers, int index) {
  const double unit = (numbers.next() >> 8) * 0x1p-23 - 1;
  return static_cast<float>(unit * (index % 2 == 0 ? 87 : 1));
}

/// The hash of a block's values, each rounded to float.
class BlockHash {
 public:
  void add(double value) {
    state_ = (state_ ^ std::bit_cast<uint32_t>(static_cast<float>(value))) * 0x100000001b3;
  }
  void add_tie() { state_ *= 0x100000001b3; }
  std::string text() const {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(state_ >> 32));
    return text;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

/// correctly_rounded.txt, which make.py explains.
struct Expected {
  std::vector<std::string> lines;
  std::set<std::pair<std::string, int>> ties;

  Expected() {
    std::ifstream file(SHOAL_TEST_DATA "/ieee_math/correctly_rounded.txt");
    for (std::string line; std::getline(file, line) && lines.size() < kCount / kBlock;)
      lines.push_back(line);
    file.clear();
    file.seekg(0);
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("tie ")) continue;
      ties.emplace(line.substr(4, 3), std::stoi(line.substr(8)));
    }
  }
};

/// One of the three functions, and the C library's.
struct Function {
  const char* name;
  double (*ours)(double);
  double (*librarys)(double);
};

/// |got - want| in units of the last place of the floats around want.
double float_ulps(float got, double want) {
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::abs(got - want) / std::ldexp(1.0, exponent - 24);
}

// Rounded to float, all three are the correctly rounded value, unless the exact one lies within
// 10^-5 ulp of the middle between two floats. There they are one of these two, as the C library's
// double says, which is exact to far less than that. So no error is above 0.5001 ulp.
TEST(IeeeMath, SineCosineAndExponentialAreCorrectlyRounded) {
  const Expected expected;
  ASSERT_EQ(expected.lines.size(), static_cast<size_t>(kCount / kBlock));
  EXPECT_LT(expected.ties.size(), 200u);
  const Function sine = {"sin", ieee::sin, [](double x) { return std::sin(x); }};
  const Function cosine = {"cos", ieee::cos, [](double x) { return std::cos(x); }};
  const Function exponential = {"exp", ieee::exp, [](double x) { return std::exp(x); }};
  Numbers angles(1), powers(2);
  size_t ties = 0;
  int wrong_blocks = 0;
  for (int begin = 0; begin < kCount; begin += kBlock) {
    BlockHash sines, cosines, exponentials;
    const auto add = [&](BlockHash& hash, const Function& function, int index, double x) {
      const double value = function.ours(x);
      if (!expected.ties.contains({function.name, index})) return hash.add(value);
      hash.add_tie();
      ++ties;
      EXPECT_LT(float_ulps(static_cast<float>(value), function.librarys(x)), 0.5001)
          << function.name << " of argument " << index;
    };
    for (int index = begin; index < begin + kBlock; ++index) {
      const double x = angle(angles, index);
      add(sines, sine, index, x);
      add(cosines, cosine, index, x);
      add(exponentials, exponential, index, power(powers, index));
    }
    const std::string got = cat(sines.text(), " ", cosines.text(), " ", exponentials.text());
    wrong_blocks += got != expected.lines[static_cast<size_t>(begin / kBlock)];
  }
  EXPECT_EQ(wrong_blocks, 0);
  EXPECT_EQ(ties, expected.ties.size());
}

// make_hard_powers.py explains the arguments: next to the middle between two floats, and next to
// where a float becomes infinite, subnormal and zero.
TEST(IeeeMath, HardExponentialsAreCorrectlyRounded) {
  std::ifstream file(SHOAL_TEST_DATA "/ieee_math/hard_powers.txt");
  file >> std::hex;
  int count = 0, near_middles = 0;
  for (uint32_t argument = 0, want = 0; file >> argument >> want; ++count) {
    const double value = ieee::exp(std::bit_cast<float>(argument));
    const auto bits_of = [](double x) { return std::bit_cast<uint32_t>(static_cast<float>(x)); };
    EXPECT_EQ(bits_of(value), want) << std::hex << argument;
    // An error of this size would be seen at many of them.
    if (bits_of(value * (1 + 0x1p-44)) != want || bits_of(value * (1 - 0x1p-44)) != want)
      ++near_middles;
  }
  EXPECT_GT(count, 200);
  EXPECT_GT(near_middles, 40);
}

/// |got - want| in units of the last place of want.
double ulps(double got, double want) {
  return std::abs(got - want) / (std::abs(want) * std::numeric_limits<double>::epsilon());
}

// Compared with the C library's, which are exact enough for these bounds.
TEST(IeeeMath, LogarithmAndPowerAreCloseToTheLibrarys) {
  Numbers numbers(3);
  double worst_log = 0, worst_power = 0;
  for (int i = 0; i < 200'000; ++i) {
    const double unit = (numbers.next() + 0.5) * 0x1p-32;
    const double x = i % 2 == 0 ? unit : std::ldexp(1 + unit, static_cast<int>(i % 2001) - 1000);
    worst_log = std::max(worst_log, ulps(ieee::log(x), std::log(x)));
    const double base = 100 + 1e6 * unit, exponent = (i % 128) / 128.0;
    worst_power = std::max(worst_power, ulps(ieee::pow(base, exponent), std::pow(base, exponent)));
  }
  EXPECT_LT(worst_log, 3);
  EXPECT_LT(worst_power, 64);
}

TEST(IeeeMath, Ends) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ieee::exp(0), 1);
  EXPECT_EQ(ieee::exp(-0.0), 1);
  EXPECT_EQ(ieee::exp(-709), 0);
  EXPECT_EQ(ieee::exp(-1e300), 0);
  EXPECT_EQ(ieee::exp(-infinity), 0);
  EXPECT_EQ(ieee::exp(710), infinity);
  EXPECT_EQ(ieee::exp(infinity), infinity);
  EXPECT_LT(ulps(ieee::exp(709.78), std::exp(709.78)), 4);
  EXPECT_TRUE(std::isnan(ieee::exp(std::nan(""))));
  EXPECT_EQ(ieee::log(1), 0);
  EXPECT_EQ(ieee::log(0), -infinity);
  EXPECT_EQ(ieee::log(infinity), infinity);
  EXPECT_TRUE(std::isnan(ieee::log(-1)));
  EXPECT_TRUE(std::isnan(ieee::log(std::nan(""))));
  EXPECT_EQ(ieee::pow(10'000, 0), 1);
  EXPECT_EQ(ieee::sin(0), 0);
  EXPECT_EQ(ieee::cos(0), 1);
}

}  // namespace
}  // namespace shoal
