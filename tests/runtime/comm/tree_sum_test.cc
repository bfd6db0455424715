#include "runtime/comm/tree_sum.h"

#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "runtime/comm/check_arguments.h"

namespace shoal {
namespace {

ReducePlan plan_with(std::vector<int> contributions, std::vector<int> merges) {
  ReducePlan plan;
  plan.contributions = std::move(contributions);
  plan.finish.merges = std::move(merges);
  return plan;
}

TEST(CheckPlanTest, AcceptsWhatMakeReducePlanMakes) {
  for (int leaves = 1; leaves <= 32; ++leaves) {
    for (int world_size = 1; world_size <= leaves; ++world_size) {
      for (const int units : {1, leaves / 2 + 1, leaves, 3 * leaves + 1}) {
        EXPECT_TRUE(check_plan(make_reduce_plan(leaves, units, world_size), {0, world_size}).ok())
            << leaves << " leaves, " << units << " units, " << world_size << " ranks";
      }
    }
  }
}

TEST(CheckPlanTest, RefusesWhatDoesNotLeaveOneValue) {
  const auto code = [](const ReducePlan& plan) { return check_plan(plan, {1, 2}).code(); };
  EXPECT_EQ(code(plan_with({1, 1}, {0, 1})), Code::kOk);
  EXPECT_EQ(code(plan_with({1, 1, 1}, {0, 1, 1})), Code::kInvalidArgument);  // three ranks
  EXPECT_EQ(code(plan_with({1, 2}, {0, 1})), Code::kInvalidArgument);        // one value is missing
  EXPECT_EQ(code(plan_with({-1, 3}, {0, 1})), Code::kInvalidArgument);
  EXPECT_EQ(code(plan_with({0, 0}, {})), Code::kInvalidArgument);
  EXPECT_EQ(code(plan_with({1, 1}, {0, 0})), Code::kInvalidArgument);  // two values are left
  EXPECT_EQ(code(plan_with({1, 1}, {1, 0})), Code::kInvalidArgument);  // a merge needs two values
  EXPECT_EQ(code(plan_with({1, 1}, {0, -1})), Code::kInvalidArgument);
  EXPECT_EQ(code(plan_with({8, 1}, {0, 0, 0, 0, 0, 0, 0, 0, 8})),
            Code::kInvalidArgument);  // the stack is too deep
}

TEST(TreeSumTest, LeftChainAndRightChainDiffer) {
  // (a + b) + c and a + (b + c), with values for which only one of them keeps c.
  const std::vector<float> a(700, 1e8F), b(700, -1e8F), c(700, 1.0F);
  const float* planes[] = {a.data(), b.data(), c.data()};
  std::vector<float> out(700);
  tree_sum({{0, 1, 1}}, planes, out.data(), out.size());
  for (const float value : out) ASSERT_EQ(value, 1.0F);
  tree_sum({{0, 0, 2}}, planes, out.data(), out.size());
  for (const float value : out) ASSERT_EQ(value, 0.0F);
}

// Tries lengths around those of tiles and vectors, planes at odd addresses, and a chain that is
// deep enough to use the tiles of one level again.
TEST(TreeSumTest, EveryLengthAndAlignment) {
  const FoldProgram chain{{0, 1, 1, 0, 2, 1}};  // ((((a+b)+c) + (d+e)) + f)
  std::vector<float> values(6 * 2000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0F / static_cast<float>(i % 977 + 1);
  for (const size_t count : {0, 1, 15, 16, 17, 511, 512, 513, 1024, 1500}) {
    const float* planes[6];
    for (size_t p = 0; p < 6; ++p) planes[p] = values.data() + p * 2000 + p;
    std::vector<float> out(count + 1, 3.0F);
    tree_sum(chain, planes, out.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const float left = (planes[0][i] + planes[1][i]) + planes[2][i];
      const float sum = (left + (planes[3][i] + planes[4][i])) + planes[5][i];
      ASSERT_EQ(std::memcmp(&out[i], &sum, sizeof(sum)), 0) << i << " of " << count;
    }
    EXPECT_EQ(out[count], 3.0F);
  }
}

TEST(SliceTest, SlicesTileTheMessageAtCacheLines) {
  for (const size_t count : {0, 1, 15, 16, 17, 100, 4096, 10'007}) {
    for (int world_size = 1; world_size <= 16; ++world_size) {
      size_t at = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const Slice slice = slice_of(rank, world_size, count);
        EXPECT_EQ(slice.begin, at);
        EXPECT_TRUE(slice.begin % 16 == 0 || slice.begin == count);
        EXPECT_LE(slice.size(), count / static_cast<size_t>(world_size) + 32);
        at = slice.end;
      }
      EXPECT_EQ(at, count);
    }
  }
}

}  // namespace
}  // namespace shoal
