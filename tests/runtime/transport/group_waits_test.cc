#include "runtime/transport/group_waits.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace shoal {
namespace {

/// When each rank is ready for a sum: seconds after the step has begun. A step ends with its last
/// sum.
using Sum = std::vector<double>;

/// What the ranks have counted after `steps` steps, each of which has these sums. A sum begins when
/// the one before it is over.
std::vector<RankWaits> ranks(const std::vector<Sum>& sums, int64_t steps = kLeastSteps) {
  const size_t size = sums.front().size();
  std::vector<double> waited(size), for_previous(size);
  double seconds = 0;
  for (const Sum& ready : sums) {
    const double over = *std::max_element(ready.begin(), ready.end());
    seconds = over;
    for (size_t rank = 0; rank < size; ++rank) {
      waited[rank] += over - ready[rank];
      const size_t previous = (rank + size - 1) % size;
      double others = 0;
      for (size_t other = 0; other < size; ++other)
        if (other != previous) others = std::max(others, ready[other]);
      for_previous[rank] += std::max(0.0, ready[previous] - others);
    }
  }
  std::vector<RankWaits> all(size);
  for (size_t rank = 0; rank < size; ++rank) {
    for (int64_t step = 0; step < steps; ++step)
      all[rank].add(1, seconds, waited[rank], for_previous[rank]);
  }
  return all;
}

std::string said(const std::vector<Sum>& sums) {
  return to_text(group_waits(ranks(sums)));
}

TEST(GroupWaits, WhoComesLastMakesTheOthersWait) {
  EXPECT_EQ(said({{0.59, 0.59, 1, 0.59}}), "rank 2 makes the others wait 41 % of the step");
  EXPECT_EQ(said({{1, 0.59}}), "rank 0 makes the others wait 41 % of the step");
  EXPECT_EQ(said({{1, 1}}), "");
}

TEST(GroupWaits, ItIsWhatTheStepWouldGainIfTheRankCameWithTheNext) {
  EXPECT_EQ(said({{0.2, 0.7, 1, 0.7}}), "rank 2 makes the others wait 30 % of the step");
  EXPECT_EQ(said({{0.2, 0.3, 1, 0.7}}), "rank 2 makes the others wait 30 % of the step");
  const std::optional<GroupWaits> both = group_waits(ranks({{1, 0.59, 1, 0.59}}));
  ASSERT_TRUE(both.has_value());
  EXPECT_FALSE(both->last.has_value()) << "one rank alone would gain nothing";
  ASSERT_EQ(both->of_rank.size(), 4u);
  EXPECT_NEAR(both->of_rank[1], 0.41, 1e-9);
  EXPECT_EQ(both->for_rank, (std::vector<double>(4)));
}

// A rank with less work than the others waits for them in most sums. A quota does not hold it up
// less because of that.
TEST(GroupWaits, WhatTheLateRankWaitsInOtherSumsIsNotSubtracted) {
  const std::vector<Sum> sums = {{0.1, 0.05}, {0.2, 0.15}, {0.3, 0.7},
                                 {0.8, 0.75}, {0.9, 0.85}, {1, 0.95}};
  EXPECT_EQ(said(sums), "rank 1 makes the others wait 40 % of the step");
  const std::optional<GroupWaits> waits = group_waits(ranks(sums));
  ASSERT_TRUE(waits.has_value());
  EXPECT_NEAR(waits->for_rank[0], 0.25, 1e-9) << "with a rank 0 that had as little work";
  EXPECT_EQ(said({{0.1, 0.05}, {0.2, 0.15}, {0.5, 0.68}, {1, 0.9}}), "")
      << "each costs the others about as much";
}

TEST(GroupWaits, EachRankCountsForThePreviousOne) {
  const std::optional<GroupWaits> waits =
      group_waits(ranks({{0.2, 0.3, 0.2}, {0.6, 0.4, 0.4}, {0.7, 0.6, 1}}));
  ASSERT_TRUE(waits.has_value());
  EXPECT_NEAR(waits->for_rank[0], 0.2, 1e-9);
  EXPECT_NEAR(waits->for_rank[1], 0.1, 1e-9);
  EXPECT_NEAR(waits->for_rank[2], 0.3, 1e-9);
  EXPECT_EQ(to_text(waits), "rank 2 makes the others wait 30 % of the step");
}

TEST(GroupWaits, ASmallShareIsNotTold) {
  EXPECT_EQ(said({{0.96, 1}}), "");
  EXPECT_EQ(said({{0.94, 1}}), "rank 1 makes the others wait 6 % of the step");
}

TEST(GroupWaits, NothingIsKnownOfOneRankOrOfFewSteps) {
  EXPECT_FALSE(group_waits(ranks({{0.4}})).has_value());
  EXPECT_FALSE(group_waits(ranks({{0.6, 1}}, kLeastSteps - 1)).has_value());
  std::vector<RankWaits> one_cannot_tell = ranks({{0.6, 1}});
  one_cannot_tell.emplace_back();
  EXPECT_FALSE(group_waits(one_cannot_tell).has_value());
  EXPECT_TRUE(to_json(group_waits(one_cannot_tell)).is_null());
  EXPECT_EQ(to_text(std::nullopt), "");
}

TEST(GroupWaits, OldStepsCountLess) {
  RankWaits rank;
  rank.add(100, RankWaits::kRecentSeconds, RankWaits::kRecentSeconds, RankWaits::kRecentSeconds);
  EXPECT_EQ(rank.share(), 1);
  EXPECT_EQ(rank.share_for_previous(), 1);
  rank.add(100, 20 * RankWaits::kRecentSeconds, 0, 0);
  EXPECT_LT(rank.share(), 1e-6);
  EXPECT_LT(rank.share_for_previous(), 1e-6);
  EXPECT_EQ(rank.steps(), 200);
}

TEST(GroupWaits, AShareIsOne) {
  RankWaits rank;
  EXPECT_EQ(rank.share(), 0) << "of no steps";
  rank.add(10, 1, 1.5, 0);  // two clocks that do not run evenly
  EXPECT_EQ(rank.share(), 1);
}

}  // namespace
}  // namespace shoal
