#include "runtime/comm/wait_time.h"

#include <gtest/gtest.h>

#include "tests/moved_clock.h"

namespace shoal {
namespace {

class WaitTimeTest : public testing::Test {
 protected:
  static void pass_ms(int64_t ms) { MovedClock::advance(1e-3 * static_cast<double>(ms)); }
  static int64_t in_ms(RunningClock::duration time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  }
  int64_t waited_ms() const { return in_ms(wait_.total().all); }

  const MovedClock clock_;
  WaitTime wait_;
};

TEST_F(WaitTimeTest, PollsCountUpToTheLookBeforeTheLastThatWasInVain) {
  wait_.begin();
  for (int look = 0; look < 10; ++look) {
    pass_ms(3);
    wait_.look();
  }
  EXPECT_EQ(waited_ms(), 27);
}

TEST_F(WaitTimeTest, WhoIsHeldUpAfterALookInVainDoesNotWait) {
  wait_.begin();
  pass_ms(3);
  wait_.look();
  pass_ms(60);  // between the poll that found nothing and the look at the clock
  wait_.look();
  EXPECT_EQ(waited_ms(), 3);
}

TEST_F(WaitTimeTest, APartCountsUntilItWasReadyAndNotUntilItIsSeen) {
  wait_.begin();
  pass_ms(1);
  wait_.look();
  pass_ms(40);
  const RunningClock::duration ready_at = RunningClock::wall();
  pass_ms(60);  // asleep, or held up
  wait_.come(ready_at);
  EXPECT_EQ(waited_ms(), 41);
}

TEST_F(WaitTimeTest, AMomentBetweenALookAndItsPollCounts) {
  wait_.begin();
  pass_ms(40);
  const RunningClock::duration ready_at = RunningClock::wall();
  pass_ms(60);  // between the poll that found nothing and the look at the clock
  wait_.look();
  wait_.come(ready_at);
  EXPECT_EQ(waited_ms(), 40);
}

TEST_F(WaitTimeTest, WhatWasReadyBeforeOrStatesNoMomentAddsNothing) {
  const RunningClock::duration ready_at = RunningClock::wall();
  pass_ms(60);
  wait_.begin();
  pass_ms(3);
  wait_.come(ready_at);
  wait_.come({});
  EXPECT_EQ(waited_ms(), 0);
}

TEST_F(WaitTimeTest, SeveralPartsCountUntilTheLast) {
  wait_.begin();
  pass_ms(20);
  const RunningClock::duration first = RunningClock::wall();
  pass_ms(20);
  const RunningClock::duration second = RunningClock::wall();
  wait_.come(second);
  wait_.come(first);
  EXPECT_EQ(waited_ms(), 40);
}

TEST_F(WaitTimeTest, ThePreviousRankCountsWhileItAloneIsMissing) {
  wait_.begin();
  pass_ms(20);
  const RunningClock::duration other = RunningClock::wall();
  pass_ms(7);
  const RunningClock::duration previous = RunningClock::wall();
  pass_ms(60);  // asleep, or held up
  wait_.come(other);
  wait_.only_previous_is_missing(true);
  wait_.come(previous);
  EXPECT_EQ(waited_ms(), 27);
  EXPECT_EQ(in_ms(wait_.total().for_previous), 7);
  wait_.only_previous_is_missing(false);
  wait_.begin();
  pass_ms(5);
  wait_.come(RunningClock::wall());
  EXPECT_EQ(waited_ms(), 32);
  EXPECT_EQ(in_ms(wait_.total().for_previous), 7);
}

TEST_F(WaitTimeTest, ALongWaitIsWholeIfItIsLookedAt) {
  wait_.begin();
  for (int look = 0; look < 20; ++look) {
    pass_ms(RunningClock::kLookMs);
    wait_.look();
  }
  pass_ms(RunningClock::kLookMs);
  wait_.come(RunningClock::wall());
  EXPECT_EQ(waited_ms(), 21 * RunningClock::kLookMs);
}

TEST_F(WaitTimeTest, APauseOfTheProcessCountsForLittle) {
  wait_.begin();
  pass_ms(3'600'000);
  wait_.look();
  wait_.look();
  EXPECT_EQ(waited_ms(), RunningClock::kMostPerLookMs);
  pass_ms(3'600'000);
  wait_.come(RunningClock::wall());
  EXPECT_EQ(waited_ms(), 2 * RunningClock::kMostPerLookMs);
}

}  // namespace
}  // namespace shoal
