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

namespace shoal {
namespace {

constexpr auto kStep = std::chrono::milliseconds(10);

TEST(RunningClockTest, RunsWithTheWallForOneWhoLooks) {
  const RunningClock::time_point began = RunningClock::now();
  const Clock::time_point wall = Clock::now();
  while (seconds_since(wall) < 0.5) std::this_thread::sleep_for(kStep);  // nobody looks
  EXPECT_LE(seconds_since(began), 1e-3 * RunningClock::kMostPerLookMs + 1e-6);
  const RunningClock::time_point again = RunningClock::now();
  const Clock::time_point second = Clock::now();
  while (seconds_since(again) < 0.3) std::this_thread::sleep_for(kStep);
  EXPECT_GE(seconds_since(second), 0.299) << "it never runs faster than the wall";
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

/// How long this child waits until its deadline of a second has passed, by the wall.
[[noreturn]] void wait_a_second(int report) {
  const Clock::time_point wall = Clock::now();
  const Deadline deadline = Deadline::after_s(1);
  while (!deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_ms()));
  const double waited = seconds_since(wall);
  ::_exit(::write(report, &waited, sizeof waited) == sizeof waited ? 0 : 1);
}

TEST(RunningClockTest, AStoppedProcessHasAllItsTimeWhenItContinues) {
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  const pid_t child = ::fork();
  if (child == 0) wait_a_second(report[1]);
  ::close(report[1]);
  for (int pause = 0; pause < 3; ++pause) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(child, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));  // 1.8 s in all
    ::kill(child, SIGCONT);
  }
  double waited = 0;
  ASSERT_EQ(::read(report[0], &waited, sizeof waited), static_cast<ssize_t>(sizeof waited));
  ::close(report[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  // Each pause counts for a tenth of a second at most.
  EXPECT_GE(waited, 1.8 + 1 - 3 * 1e-3 * (RunningClock::kMostPerLookMs + 20));
}

}  // namespace
}  // namespace shoal
