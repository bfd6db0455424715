#include "runtime/base/wait.h"

#include <gtest/gtest.h>
#include <thread>

#include "runtime/base/deadline.h"

namespace shoal {
namespace {

TEST(WaitTest, ReturnsAtOnceWhenTheConditionHoldsAlready) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  int asked = 0;
  wait_until_ready(changed, lock, [&] { return ++asked > 0; });
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(lock.owns_lock());
}

TEST(WaitTest, SleepsThroughWakeUpsThatDoNotMakeTheConditionTrue) {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) {
      const std::lock_guard lock(mutex);
      ++count;
      changed.notify_one();
    }
  });
  const auto start = Clock::now();
  {
    std::unique_lock lock(mutex);
    wait_until_ready(changed, lock, [&] { return count == 3; });
    EXPECT_EQ(count, 3);
    EXPECT_TRUE(lock.owns_lock());
  }
  other.join();
  // The notification ended the wait, not the deadline of an hour.
  EXPECT_LT(seconds_since(start), 60);
}

TEST(WaitTest, ADeadlineEndsAWait) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  int asked = 0;
  const Deadline deadline = Deadline::after_ms(120);
  EXPECT_FALSE(wait_until_ready(changed, lock, deadline, [&] { return ++asked < 0; }));
  EXPECT_TRUE(deadline.passed());
  EXPECT_GT(asked, 1);
  EXPECT_TRUE(wait_until_ready(changed, lock, deadline, [] { return true; }))
      << "what is ready is not late";
}

}  // namespace
}  // namespace shoal
