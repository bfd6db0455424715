#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/reference/exp.h"
#include "runtime/base/ieee_math.h"
#include "tests/kernels/kernel_test.h"

namespace shoal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class VocabTest : public KernelTest {};

TEST_P(VocabTest, ArgmaxFindsTheLowestOfTheGreatest) {
  for (int cols : {1, 2, 15, 16, 17, 255, 256, 300, 1000}) {
    std::vector<float> logits =
        random_floats(static_cast<size_t>(cols), static_cast<uint32_t>(cols));
    for (int winner : {0, cols / 2, cols - 1}) {
      std::vector<float> with = logits;
      with[static_cast<size_t>(winner)] = 3;
      with[static_cast<size_t>(cols - 1)] = 3;
      const ArgmaxResult result = kernels().argmax(with.data(), cols);
      EXPECT_EQ(result.column, winner) << cols;
      EXPECT_EQ(result.value, 3);
    }
    const std::vector<float> equal(static_cast<size_t>(cols), -2.0f);
    EXPECT_EQ(kernels().argmax(equal.data(), cols).column, 0);
    EXPECT_EQ(kernels().argmax(equal.data(), cols).value, -2);
  }
}

TEST_P(VocabTest, ArgmaxOfOddValues) {
  const float nan = std::nanf("");
  std::vector<float> logits(40, -kInfinity);
  EXPECT_EQ(kernels().argmax(logits.data(), 40).column, 0);
  EXPECT_EQ(kernels().argmax(logits.data(), 40).value, -kInfinity);
  logits.assign(40, nan);
  EXPECT_EQ(kernels().argmax(logits.data(), 40).column, 0);
  EXPECT_EQ(kernels().argmax(logits.data(), 40).value, -kInfinity);
  logits[33] = -5;
  EXPECT_EQ(kernels().argmax(logits.data(), 40).column, 33);
  EXPECT_EQ(kernels().argmax(logits.data(), 40).value, -5);
  logits[37] = kInfinity;
  EXPECT_EQ(kernels().argmax(logits.data(), 40).column, 37);
  const std::vector<float> zeros = {-1, -0.0f, 0.0f};
  EXPECT_EQ(kernels().argmax(zeros.data(), 3).column, 1);
  EXPECT_TRUE(std::signbit(kernels().argmax(zeros.data(), 3).value));
}

TEST_P(VocabTest, ChunkSumsAreThoseOfEachChunk) {
  for (int cols : {1, 16, 31, 256, 257, 700}) {
    const std::vector<float> logits = random_floats(static_cast<size_t>(cols), 5, 30);
    const int chunks = (cols + kVocabChunk - 1) / kVocabChunk;
    std::vector<ChunkSum> sums(static_cast<size_t>(chunks));
    kernels().chunk_sums(logits.data(), cols, sums.data());
    for (int c = 0; c < chunks; ++c) {
      const int begin = c * kVocabChunk, end = std::min(begin + kVocabChunk, cols);
      float max = -kInfinity;
      double sum = 0;
      for (int i = begin; i < end; ++i) max = std::max(max, logits[static_cast<size_t>(i)]);
      for (int i = begin; i < end; ++i)
        sum += std::exp(static_cast<double>(logits[static_cast<size_t>(i)]) - max);
      const ChunkSum got = sums[static_cast<size_t>(c)];
      EXPECT_EQ(got.max, max);
      EXPECT_NEAR(got.sum, sum, sum * 2e-6);
      ChunkSum alone;
      kernels().chunk_sums(logits.data() + begin, end - begin, &alone);
      EXPECT_EQ(alone.max, got.max);
      EXPECT_EQ(alone.sum, got.sum) << "a chunk depends on where it stands";
    }
  }
}

TEST_P(VocabTest, ChunkSumsOfMaskedLogits) {
  std::vector<float> logits(600, -kInfinity);
  logits[300] = 4;
  ChunkSum sums[3];
  kernels().chunk_sums(logits.data(), 600, sums);
  EXPECT_EQ(sums[0].max, -kInfinity);
  EXPECT_EQ(sums[0].sum, 0);
  EXPECT_EQ(sums[1].max, 4);
  EXPECT_EQ(sums[1].sum, 1);
  EXPECT_EQ(sums[2].sum, 0);
}

TEST_P(VocabTest, ExponentialIsAccurateOverItsRange) {
  // The sum of {0, x} is 1 + exp(x); that of {0} with x far below is 1 alone.
  for (float x = -86; x <= 0; x += 0.37f) {
    const float logits[] = {0, x};
    ChunkSum sum;
    kernels().chunk_sums(logits, 2, &sum);
    EXPECT_NEAR(sum.sum, 1 + std::exp(static_cast<double>(x)), 2.5e-7) << x;
  }
  for (float x : {-88.0f, -104.0f, -1000.0f, -3e38f, -kInfinity}) {
    const float logits[] = {0, x};
    ChunkSum sum;
    kernels().chunk_sums(logits, 2, &sum);
    EXPECT_EQ(sum.sum, 1) << x;
  }
}

// SameBitsTest compares the sets' exponential with this one, and ieee_math_test compares the double
// that it is measured by with correctly rounded values.
TEST(Exponential, IsWithinOneAndAHalfUlp) {
  set_float_environment();
  std::vector<float> arguments = random_floats(1'000'000, 6, 87);
  // Where the rest after the multiple of ln 2 is greatest, and near the ends of normal results.
  for (int n = -125; n <= 126; ++n) {
    const float middle = static_cast<float>((n + 0.5) * std::numbers::ln2);
    for (const float x :
         {std::nextafter(middle, -kInfinity), middle, std::nextafter(middle, kInfinity)})
      arguments.push_back(x);
  }
  arguments.insert(arguments.end(), {-87.3f, 88.7f});
  double worst = 0;
  for (const float x : arguments) {
    const double want = ieee::exp(x);
    int exponent = 0;
    std::frexp(want, &exponent);
    worst = std::max(worst, std::abs(reference::exp(x) - want) / std::ldexp(1.0, exponent - 24));
  }
  EXPECT_LT(worst, 1.5);
  EXPECT_EQ(reference::exp(0), 1);
  EXPECT_EQ(reference::exp(-104), 0);
  EXPECT_EQ(reference::exp(-kInfinity), 0);
  EXPECT_EQ(reference::exp(89), kInfinity);
  EXPECT_TRUE(std::isnan(reference::exp(std::nanf(""))));
}

SHOAL_FOR_EVERY_SET(VocabTest);

}  // namespace
}  // namespace shoal
