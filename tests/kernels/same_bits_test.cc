#include <algorithm>
#include <bit>
#include <limits>
#include <numbers>

#include "tests/kernels/kernel_test.h"

// Every kernel set gives the bits of the reference (docs/architecture.md, section 5). The products
// and attention are compared in matmul_test and attention_test, beside their shapes.

namespace shoal {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Values of every size: random bit patterns, without NaN, whose bits no promise covers.
std::vector<float> any_floats(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    do {
      value = std::bit_cast<float>(static_cast<uint32_t>(engine()));
    } while (value != value);
  }
  return values;
}

/// Random values, of which some are subnormal, zero, infinite or close to overflow.
std::vector<float> odd_floats(size_t count, uint32_t seed, float scale) {
  std::vector<float> values = random_floats(count, seed, scale);
  const float odd[] = {0.0f, -0.0f, 1e-39f, -1e-42f, 0x1p-126f, -0x1p-126f, 3e38f, -88.7f};
  for (size_t i = 0; i < count; i += 7) values[i] = odd[i / 7 % std::size(odd)];
  return values;
}

class SameBitsTest : public KernelTest {
 protected:
  /// The result of both tables, for which `op` fills and returns an array.
  template <typename Op>
  void compare(const char* what, const Op& op) {
    EXPECT_TRUE(same_bits(op(kernels()), op(reference()))) << what;
  }
};

TEST_P(SameBitsTest, RmsNorm) {
  for (const int cols : {1, 15, 16, 17, 63, 64, 65, 100, 2053}) {
    const std::vector<float> x = random_floats(static_cast<size_t>(3 * cols), 3, 9),
                             weight = odd_floats(static_cast<size_t>(cols), 4, 2);
    compare(cat("cols ", cols).c_str(), [&](const KernelTable& table) {
      std::vector<float> out(static_cast<size_t>(3 * cols));
      table.rms_norm({x.data(), weight.data(), 1e-5f, cols, out.data(), Dtype::kF32, cols}, 0, 3);
      return out;
    });
  }
}

TEST_P(SameBitsTest, ResidualAddAndAdd) {
  for (const int cols : {1, 16, 37, 300}) {
    const auto count = static_cast<size_t>(2 * cols);
    const std::vector<float> sum = odd_floats(count, 5, 1), bias = odd_floats(count, 6, 3),
                             start = odd_floats(count, 7, 0x1p-100f);
    compare("residual_add", [&](const KernelTable& table) {
      std::vector<float> residual = start;
      table.residual_add({residual.data(), sum.data(), nullptr, cols}, 0, 2);
      table.residual_add({residual.data(), sum.data(), bias.data(), cols}, 0, 2);
      return residual;
    });
    compare("add", [&](const KernelTable& table) {
      std::vector<float> all = start;
      table.add(all.data(), sum.data(), 2 * cols);
      return all;
    });
  }
}

/// Arguments of the exponential at which an error of one unit would change the multiple of ln 2
/// that is taken off, or make a result infinite, subnormal or zero: of either sign, the floats next
/// to the middle of two multiples and to the ends, and the ends of what is computed at all.
std::vector<float> hard_powers() {
  constexpr int kEachSide = 8;
  std::vector<double> places = {89, 104};
  for (int half = 1; half < 2 * 152; ++half) places.push_back(half * std::numbers::ln2 / 2);
  std::vector<float> found;
  for (const double place : places) {
    const auto middle = std::bit_cast<uint32_t>(static_cast<float>(place));
    for (uint32_t bits = middle - kEachSide; bits <= middle + kEachSide; ++bits) {
      found.push_back(std::bit_cast<float>(bits));
      found.push_back(-found.back());
    }
  }
  return found;
}

// A gate goes through the exponential alone, so this compares it over its whole range.
TEST_P(SameBitsTest, SiluMulOfAnyGates) {
  constexpr int kCols = 100'000;
  std::vector<float> gate_up = any_floats(kCols, 8);
  const std::vector<float> near = random_floats(kCols / 2, 9, 110);
  std::copy(near.begin(), near.end(), gate_up.begin());
  const std::vector<float> hard = hard_powers();
  ASSERT_LT(hard.size(), static_cast<size_t>(kCols / 2));
  std::copy(hard.begin(), hard.end(), gate_up.begin() + kCols / 2);
  gate_up.resize(2 * kCols, 1.0f);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    compare(dtype_name(dtype).data(), [&](const KernelTable& table) {
      std::vector<float> out(kCols);
      table.silu_mul({gate_up.data(), nullptr, kCols, out.data(), dtype, kCols}, 0, 1);
      // Gates that are infinite give NaN.
      for (float& value : out) value = value == value ? value : 0;
      return out;
    });
  }
}

TEST_P(SameBitsTest, ArgmaxAndChunkSums) {
  for (const int64_t cols : {1, 15, 16, 255, 256, 257, 1000}) {
    for (const float scale : {1.0f, 60.0f}) {
      std::vector<float> logits = odd_floats(static_cast<size_t>(cols), 10, scale);
      for (float& logit : logits) logit = logit > 1e30f ? kNothing : logit;
      compare("argmax", [&](const KernelTable& table) {
        const ArgmaxResult best = table.argmax(logits.data(), cols);
        return std::vector<float>{best.value, static_cast<float>(best.column)};
      });
      compare("chunk_sums", [&](const KernelTable& table) {
        std::vector<ChunkSum> sums(static_cast<size_t>((cols + kVocabChunk - 1) / kVocabChunk));
        table.chunk_sums(logits.data(), cols, sums.data());
        std::vector<float> all;
        for (const ChunkSum& sum : sums) all.insert(all.end(), {sum.max, sum.sum});
        return all;
      });
    }
  }
}

TEST_P(SameBitsTest, Checksums) {
  const std::vector<float> values = any_floats(100'000, 11);
  for (const size_t bytes : {0, 1, 15, 16, 128, 240, 241, 1023, 4096, 100'001, 400'000}) {
    const auto data = reinterpret_cast<const std::byte*>(values.data());
    const size_t from = values.size() * sizeof(float) - bytes;  // an odd one is not aligned
    const uint64_t right = available_kernels().back()->checksum(data + from, bytes);
    EXPECT_EQ(kernels().checksum(data + from, bytes), right) << bytes << " bytes";
  }
}

SHOAL_FOR_EVERY_SET(SameBitsTest);

}  // namespace
}  // namespace shoal
