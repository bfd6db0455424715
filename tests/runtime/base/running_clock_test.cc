// The pauses are real: a child process waits, and this one stops it.
#include "runtime/base/running_clock.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/base/deadline.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

TEST(RunningClockTest, ATimeInWhichNobodyLooksCountsForLittle) {
  const RunningClock::time_point began = RunningClock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(5 * RunningClock::kMostPerLookMs));
  EXPECT_LE(seconds_since(began), 1e-3 * RunningClock::kMostPerLookMs);
}

TEST(RunningClockTest, NeverRunsFasterThanTheWall) {
  const Clock::time_point wall = Clock::now();
  const RunningClock::time_point began = RunningClock::now();
  while (seconds_since(began) < 0.3) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const double ran = seconds_since(began);
  EXPECT_GE(seconds_since(wall), ran);
}

TEST(RunningClockTest, MovesAsATestSays) {
  const RunningClock::time_point before = RunningClock::now();
  RunningClock::time_point moved;
  {
    const MovedClock clock;
    const Deadline deadline = Deadline::after_s(1000);
    const RunningClock::time_point began = RunningClock::now();
    EXPECT_GE(began, before);
    MovedClock::advance(999);
    EXPECT_FALSE(deadline.passed());
    EXPECT_DOUBLE_EQ(seconds_since(began), 999);
    EXPECT_DOUBLE_EQ(deadline.seconds_left(), 1);
    MovedClock::advance(1);
    EXPECT_TRUE(deadline.passed());
    EXPECT_EQ(RunningClock::wall(), RunningClock::now().time_since_epoch());
    moved = RunningClock::now();
  }
  EXPECT_GE(RunningClock::now(), moved) << "it never goes back";
}

TEST(RunningClockTest, TheWallsClockIsThatOfEveryProcess) {
  const Clock::time_point before = Clock::now();
  const RunningClock::duration wall = RunningClock::wall();
  EXPECT_GE(wall, before.time_since_epoch());
  EXPECT_LE(wall, Clock::now().time_since_epoch());
}

TEST(RunningClockTest, ManyThreadsDoNotMakeItFaster) {
  const Clock::time_point wall = Clock::now();
  const RunningClock::time_point began = RunningClock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      RunningClock::time_point last = RunningClock::now();
      for (int look = 0; look < 10'000; ++look) {
        const RunningClock::time_point now = RunningClock::now();
        EXPECT_GE(now, last);
        last = now;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double ran = seconds_since(began);
  EXPECT_LE(ran, seconds_since(wall));
}

/// Says that this child has begun to wait, and then how long it waited until its deadline of a
/// second had passed, by the wall.
[[noreturn]] void wait_a_second(int report) {
  const Clock::time_point wall = Clock::now();
  const Deadline deadline = Deadline::after_s(1);
  if (::write(report, "b", 1) != 1) ::_exit(1);
  while (!deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_ms()));
  const double waited = seconds_since(wall);
  ::_exit(::write(report, &waited, sizeof waited) == sizeof waited ? 0 : 1);
}

/// Stops the child for that long. Returns how long it was surely stopped, by
/// the wall; 0 if it ended before.
double pause(pid_t child, std::chrono::milliseconds time) {
  int status = 0;
  ::kill(child, SIGSTOP);
  if (::waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return 0;
  const Clock::time_point stopped = Clock::now();
  std::this_thread::sleep_for(time);
  const double seconds = seconds_since(stopped);
  ::kill(child, SIGCONT);
  return seconds;
}

TEST(RunningClockTest, AStoppedProcessHasAllItsTimeWhenItContinues) {
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  const pid_t child = ::fork();
  if (child == 0) wait_a_second(report[1]);
  ::close(report[1]);
  char begun = 0;
  ASSERT_EQ(::read(report[0], &begun, 1), 1);
  constexpr int kPauses = 3;
  double stopped = 0;
  for (int i = 0; i < kPauses; ++i) stopped += pause(child, std::chrono::milliseconds(600));
  double waited = 0;
  ASSERT_EQ(::read(report[0], &waited, sizeof waited), static_cast<ssize_t>(sizeof waited));
  ::close(report[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  EXPECT_GE(waited, stopped + 1 - kPauses * 1e-3 * RunningClock::kMostPerLookMs);
}

}  // namespace
}  // namespace shoal
