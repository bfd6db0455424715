#include "runtime/transport/group_waits.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

/// Ranks that have run `steps` steps of a second each, in which they waited these shares.
std::vector<RankWaits> ranks(const std::vector<double>& shares, int64_t steps = kLeastSteps) {
  std::vector<RankWaits> all(shares.size());
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    for (int64_t step = 0; step < steps; ++step) all[rank].add(1, 1, shares[rank]);
  }
  return all;
}

std::string said(const std::vector<double>& shares) {
  return to_text(group_waits(ranks(shares)));
}

TEST(GroupWaits, WhoWaitsLeastMakesTheOthersWait) {
  EXPECT_EQ(said({0.41, 0.41, 0, 0.41}), "rank 2 makes the others wait 41 % of the step");
  EXPECT_EQ(said({0, 0.41}), "rank 0 makes the others wait 41 % of the step");
}

TEST(GroupWaits, WhatAllWaitForIsNobodysFault) {
  EXPECT_EQ(said({0.61, 0.20, 0.61}), "rank 1 makes the others wait 41 % of the step");
  EXPECT_EQ(said({0.9, 0.9}), "");
}

TEST(GroupWaits, ItIsWhatEveryOtherRankWaits) {
  // A rank that is fast waits longer than those of usual speed, which says nothing of the slow one.
  EXPECT_EQ(said({0.8, 0.3, 0, 0.3}), "rank 2 makes the others wait 30 % of the step");
  const std::optional<GroupWaits> both = group_waits(ranks({0, 0.41, 0, 0.41}));
  ASSERT_TRUE(both.has_value());
  EXPECT_FALSE(both->last.has_value()) << "one rank alone would gain nothing";
  ASSERT_EQ(both->of_rank.size(), 4u);
  EXPECT_NEAR(both->of_rank[1], 0.41, 1e-9);
}

TEST(GroupWaits, ASmallShareIsNotTold) {
  EXPECT_EQ(said({0.04, 0}), "");
  EXPECT_EQ(said({0.06, 0}), "rank 1 makes the others wait 6 % of the step");
}

TEST(GroupWaits, NothingIsKnownOfOneRankOrOfFewSteps) {
  EXPECT_FALSE(group_waits(ranks({0.4})).has_value());
  EXPECT_FALSE(group_waits(ranks({0.4, 0}, kLeastSteps - 1)).has_value());
  std::vector<RankWaits> one_cannot_tell = ranks({0.4, 0});
  one_cannot_tell.emplace_back();
  EXPECT_FALSE(group_waits(one_cannot_tell).has_value());
  EXPECT_TRUE(to_json(group_waits(one_cannot_tell)).is_null());
  EXPECT_EQ(to_text(std::nullopt), "");
}

TEST(GroupWaits, OldStepsCountLess) {
  RankWaits rank;
  rank.add(100, RankWaits::kRecentSeconds, RankWaits::kRecentSeconds);
  EXPECT_EQ(rank.share(), 1);
  rank.add(100, 20 * RankWaits::kRecentSeconds, 0);
  EXPECT_LT(rank.share(), 1e-6);
  EXPECT_EQ(rank.steps(), 200);
}

TEST(GroupWaits, AShareIsOne) {
  RankWaits rank;
  EXPECT_EQ(rank.share(), 0) << "of no steps";
  rank.add(10, 1, 1.5);  // two clocks that do not run evenly
  EXPECT_EQ(rank.share(), 1);
}

}  // namespace
}  // namespace shoal
