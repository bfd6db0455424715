// The emulated tensor core has the bits of an independent judge (tests/data/tensor_core/make.py).
#include <bit>
#include <cstring>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/class_hashes.h"
#include "tests/breadth.h"
#include "tests/emulator/judged_verdicts.h"
#include "tests/emulator/tensor_core.h"

namespace shoal::emulator {
namespace {

using judged::kHashes;
using judged::kResults;
using judged::Results;

judged::Verdicts verdicts_of(const std::string& name) {
  std::optional<judged::Verdicts> verdicts =
      judged::read_verdicts(std::string(SHOAL_TEST_DATA "/tensor_core/") + name);
  EXPECT_TRUE(verdicts) << name;
  return verdicts ? *verdicts
                  : judged::Verdicts{std::vector<uint64_t>(kHashes),
                                     std::vector<Results>(judged::kWholeTiles)};
}

uint16_t factor_of(uint32_t bits, uint16_t) {
  return static_cast<uint16_t>(bits >> 16);
}
float factor_of(uint32_t bits, float) {
  return std::bit_cast<float>(bits);
}

/// What the emulated tensor core makes of a tile. T: uint16_t is bfloat16, float is tf32.
template <class T>
Results multiplied(const TensorCore& core, const judged::Tile& tile) {
  constexpr int kFactors = sizeof(T) == 2 ? judged::kFactors : judged::kFactors / 2;
  T a[judged::kRows][kFactors], b[judged::kColumns][kFactors];
  float sum[judged::kRows][judged::kColumns];
  for (int k = 0; k < kFactors; ++k) {
    for (int row = 0; row < judged::kRows; ++row) a[row][k] = factor_of(tile.a[row][k], T{});
    for (int column = 0; column < judged::kColumns; ++column)
      b[column][k] = factor_of(tile.b[column][k], T{});
  }
  std::memcpy(sum, tile.sum, sizeof sum);
  multiply_tile(core, a, b, sum);
  Results results;
  std::memcpy(results.data(), sum, sizeof sum);
  return results;
}

/// Compares a tile of which all results are kept.
void expect_results(const Results& results, const Results& verdict, int tile) {
  for (int i = 0; i < kResults; ++i) {
    ASSERT_EQ(results[i], verdict[i])
        << "tile " << tile << " of kind " << tile % judged::kKinds << ", row "
        << i / judged::kColumns << ", column " << i % judged::kColumns;
  }
}

/// Sanitizers look at the same instructions whatever the numbers are.
bool is_for_this_run(int hash) {
#ifdef SHOAL_SANITIZED
  return in_share(hash, 100);
#else
  static_cast<void>(hash);
  return true;
#endif
}

template <class T>
void expect_the_judges_bits(int compute_major, const std::string& name) {
  const TensorCore core = tensor_core_of(compute_major);
  const judged::Verdicts verdicts = verdicts_of(name);
  for (int tile = 0; tile < judged::kWholeTiles; ++tile)
    expect_results(multiplied<T>(core, judged::tile_of(tile)), verdicts.whole[tile], tile);
  if (testing::Test::HasFailure()) return;  // the hashes would only say it again
  std::string wrong;
  for (int i = 0; i < kHashes; ++i) {
    if (!is_for_this_run(i)) continue;
    uint64_t hash = judged::kEmptyHash;
    for (int tile = i * judged::kTilesOfHash; tile < (i + 1) * judged::kTilesOfHash; ++tile) {
      for (const uint32_t result : multiplied<T>(core, judged::tile_of(tile)))
        hash = judged::added_to_hash(hash, result);
    }
    if (hash != verdicts.hashes[i]) wrong += " " + std::to_string(i);
  }
  EXPECT_EQ(wrong, "") << "hashes of " << judged::kTilesOfHash << " tiles";
}

/// What ranks find out the class of their devices with.
TEST(JudgeTest, TheHashesOfClassesAreTheJudges) {
  const auto hash = [](const std::string& name) {
    const judged::Verdicts verdicts = verdicts_of(name);
    return judged::hash_of(verdicts.whole[0].data(), kClassTiles * kResults);
  };
  EXPECT_EQ(kSm80Hashes, (TensorCoreHashes{hash("sm80_bf16.bin"), hash("sm80_tf32.bin")}));
  EXPECT_EQ(kSm90Hashes, (TensorCoreHashes{hash("sm90_bf16.bin"), hash("sm90_tf32.bin")}));
}

TEST(JudgeTest, Bfloat16OfTheFirstGenerations) {
  expect_the_judges_bits<uint16_t>(8, "sm80_bf16.bin");
}
TEST(JudgeTest, Tf32OfTheFirstGenerations) {
  expect_the_judges_bits<float>(8, "sm80_tf32.bin");
}
TEST(JudgeTest, Bfloat16OfTheLaterGenerations) {
  expect_the_judges_bits<uint16_t>(9, "sm90_bf16.bin");
}
TEST(JudgeTest, Tf32OfTheLaterGenerations) {
  expect_the_judges_bits<float>(9, "sm90_tf32.bin");
}

}  // namespace
}  // namespace shoal::emulator
