#include "runtime/base/reduce_tree.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <string>

namespace shoal {
namespace {

constexpr int kLeaves = 16;
constexpr int kUnits = 40;

/// The definition of the tree, written down a second time: a node of n leaves is ceil(n/2) |
/// floor(n/2), and empty parts are left out.
std::optional<float> tree_sum(const std::vector<std::optional<float>>& leaves, size_t begin,
                              size_t end) {
  if (end - begin == 1) return leaves[begin];
  const size_t middle = begin + (end - begin + 1) / 2;
  const std::optional<float> left = tree_sum(leaves, begin, middle);
  const std::optional<float> right = tree_sum(leaves, middle, end);
  if (!left) return right;
  if (!right) return left;
  return *left + *right;
}

void merge_top(std::vector<float>& stack, int times) {
  for (; times > 0; --times) {
    ASSERT_GE(stack.size(), 2u);
    const float right = stack.back();
    stack.pop_back();
    stack.back() += right;
  }
}

/// The values that one rank sends.
std::vector<float> contributions_of(const RankFold& fold,
                                    const std::vector<std::optional<float>>& leaves) {
  std::vector<float> sent, stack;
  for (const RankFold::Step& step : fold.steps) {
    stack.push_back(
        leaves[static_cast<size_t>(step.leaf)].value());  // an empty leaf has no value to push
    merge_top(stack, step.merges);
    if (step.contribution < 0) continue;
    EXPECT_EQ(stack.size(), 1u);
    EXPECT_EQ(step.contribution, static_cast<int>(sent.size()));
    sent.push_back(stack.back());
    stack.clear();
  }
  EXPECT_TRUE(stack.empty());
  EXPECT_EQ(static_cast<int>(sent.size()), fold.contributions);
  return sent;
}

float finish(const FoldProgram& program, const std::vector<float>& values) {
  EXPECT_EQ(program.merges.size(), values.size());
  std::vector<float> stack;
  for (size_t i = 0; i < values.size(); ++i) {
    stack.push_back(values[i]);
    merge_top(stack, program.merges[i]);
  }
  EXPECT_EQ(stack.size(), 1u);
  return stack.empty() ? 0 : stack.front();
}

/// Values whose sum depends on the order, because their magnitudes span a factor of 2^40 and they
/// have both signs.
std::vector<std::optional<float>> leaf_values(int leaves, int units) {
  std::mt19937 random(static_cast<unsigned>(leaves * 1000 + units));
  std::vector<std::optional<float>> values;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    const float value = std::ldexp(static_cast<float>(random() % 0xFFFFFF) - 8e6f,
                                   static_cast<int>(random() % 40) - 30);
    values.push_back(leaf_units(leaf, leaves, units).empty() ? std::nullopt : std::optional(value));
  }
  return values;
}

TEST(ReduceTreeTest, LeavesPartitionTheUnitsEvenly) {
  for (int leaves = 1; leaves <= kLeaves; ++leaves) {
    for (int units = 1; units <= kUnits; ++units) {
      int next = 0;
      for (int leaf = 0; leaf < leaves; ++leaf) {
        const Range range = leaf_units(leaf, leaves, units);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), units / leaves);
        EXPECT_LE(range.size(), (units + leaves - 1) / leaves);
        next = range.end;
      }
      EXPECT_EQ(next, units);
    }
  }
}

TEST(ReduceTreeTest, LeafUnitsOfLargeModelsDoNotOverflow) {
  constexpr int kManyUnits = 2'000'000'000;
  EXPECT_EQ(leaf_units(15, 16, kManyUnits), (Range{1'875'000'000, kManyUnits}));
}

TEST(ReduceTreeTest, LeafCountIsTheHeadsUpToSixteen) {
  EXPECT_EQ(leaf_count(1), 1);
  EXPECT_EQ(leaf_count(9), 9);
  EXPECT_EQ(leaf_count(16), 16);
  EXPECT_EQ(leaf_count(28), 16);
}

TEST(ReduceTreeTest, RanksPartitionTheLeavesAndNoneIsWithout) {
  for (int leaves = 1; leaves <= kLeaves; ++leaves) {
    for (int ranks = 1; ranks <= leaves; ++ranks) {
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range range = leaves_of_rank(rank, ranks, leaves);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), leaves / ranks);
        EXPECT_LE(range.size(), (leaves + ranks - 1) / ranks);
        next = range.end;
      }
      EXPECT_EQ(next, leaves);
    }
  }
}

TEST(ReduceTreeTest, EqualBitsForEveryNumberOfRanks) {
  for (int leaves = 1; leaves <= kLeaves; ++leaves) {
    for (int units = 1; units <= kUnits; ++units) {
      const std::vector<std::optional<float>> values = leaf_values(leaves, units);
      const std::optional<float> expected = tree_sum(values, 0, values.size());
      ASSERT_TRUE(expected.has_value());
      for (int ranks = 1; ranks <= leaves; ++ranks) {
        SCOPED_TRACE(std::to_string(leaves) + " leaves, " + std::to_string(units) + " units, " +
                     std::to_string(ranks) + " ranks");
        const ReducePlan plan = make_reduce_plan(leaves, units, ranks);
        ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(ranks));
        ASSERT_EQ(plan.contributions.size(), static_cast<size_t>(ranks));
        std::vector<float> all;
        for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
          const std::vector<float> sent = contributions_of(plan.ranks[rank], values);
          EXPECT_EQ(plan.contributions[rank], static_cast<int>(sent.size()));
          all.insert(all.end(), sent.begin(), sent.end());
        }
        EXPECT_EQ(plan.total_contributions(), static_cast<int>(all.size()));
        const float sum = finish(plan.finish, all);
        ASSERT_EQ(std::bit_cast<uint32_t>(sum), std::bit_cast<uint32_t>(*expected))
            << sum << " and " << *expected;
      }
    }
  }
}

TEST(ReduceTreeTest, TheOrderMattersForTheseValues) {
  // Without this check the test above could pass with any order of additions.
  int differ = 0;
  for (int leaves = 4; leaves <= kLeaves; ++leaves) {
    const std::vector<std::optional<float>> values = leaf_values(leaves, kUnits);
    float in_a_row = 0;
    for (const std::optional<float>& value : values) in_a_row += value.value();
    differ += in_a_row != tree_sum(values, 0, values.size());
  }
  EXPECT_GE(differ, 5);
}

TEST(ReduceTreeTest, EachRankComputesItsOwnLeavesOnceAndSendsWholeSubTrees) {
  for (int leaves = 1; leaves <= kLeaves; ++leaves) {
    for (int ranks = 1; ranks <= leaves; ++ranks) {
      for (const int units : {1, 3, leaves, kUnits}) {
        const ReducePlan plan = make_reduce_plan(leaves, units, ranks);
        for (int rank = 0; rank < ranks; ++rank) {
          const Range owned = leaves_of_rank(rank, ranks, leaves);
          std::vector<int> expected, computed;
          for (int leaf = owned.begin; leaf < owned.end; ++leaf) {
            if (!leaf_units(leaf, leaves, units).empty()) expected.push_back(leaf);
          }
          for (const RankFold::Step& step : plan.ranks[static_cast<size_t>(rank)].steps)
            computed.push_back(step.leaf);
          EXPECT_EQ(computed, expected);
          const bool power_of_two = (ranks & (ranks - 1)) == 0;
          EXPECT_LE(plan.contributions[static_cast<size_t>(rank)], power_of_two ? 1 : 4)
              << leaves << " leaves, rank " << rank << " of " << ranks;
        }
      }
    }
  }
}

TEST(ReduceTreeTest, NineHeadsOnTwoRanks) {
  // 9 = 5 | 4: each rank sends one partial sum, and there is one addition.
  const ReducePlan plan = make_reduce_plan(9, 9, 2);
  EXPECT_EQ(leaves_of_rank(0, 2, 9), (Range{0, 5}));
  EXPECT_EQ(leaves_of_rank(1, 2, 9), (Range{5, 9}));
  EXPECT_EQ(plan.contributions, (std::vector<int>{1, 1}));
  EXPECT_EQ(plan.finish.merges, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace shoal
