#include "runtime/base/deadline.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <limits>

namespace shoal {
namespace {

constexpr int64_t kAnHourMs = 3'600'000;

TEST(DeadlineTest, NowAndThePastHavePassed) {
  for (const int64_t ms : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_TRUE(Deadline::after_ms(ms).passed()) << ms;
    EXPECT_EQ(Deadline::after_ms(ms).remaining_ms(), 0) << ms;
  }
  EXPECT_TRUE(Deadline::after_s(-1e300).passed());
  EXPECT_TRUE(Deadline::after_s(0).passed());
}

TEST(DeadlineTest, LaterHasNotPassed) {
  const Deadline deadline = Deadline::after_ms(kAnHourMs);
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.remaining_ms(), 0);
  EXPECT_LE(deadline.remaining_ms(), RunningClock::kLookMs);
  EXPECT_EQ(deadline.remaining_ms(20), 20);
  EXPECT_FALSE(Deadline::after_s(3600).passed());
}

TEST(DeadlineTest, InfiniteNeverPasses) {
  EXPECT_FALSE(Deadline::infinite().passed());
  EXPECT_EQ(Deadline::infinite().remaining_ms(250), 250);
}

TEST(DeadlineTest, NumbersTooLargeForTheClockAreInfinite) {
  EXPECT_EQ(Deadline::after_ms(std::numeric_limits<int64_t>::max()).at(),
            Deadline::infinite().at());
  EXPECT_EQ(Deadline::after_s(1e300).at(), Deadline::infinite().at());
  EXPECT_EQ(Deadline::after_s(std::numeric_limits<double>::infinity()).at(),
            Deadline::infinite().at());
  EXPECT_EQ(Deadline::after_s(std::numeric_limits<double>::quiet_NaN()).at(),
            Deadline::infinite().at());
  EXPECT_LT(Deadline::after_ms(1000 * kAnHourMs).at(), Deadline::infinite().at());
}

TEST(DeadlineTest, AWaitIsShortEnoughForTheClock) {
  EXPECT_EQ(Deadline::after_ms(10'000 * kAnHourMs).remaining_ms(), RunningClock::kLookMs);
}

}  // namespace
}  // namespace shoal
