// When a step has hung. The ranks are real children that sleep, compute or are stopped; only the
// time moves as the test says.
#include "runtime/supervisor/step_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "runtime/supervisor/process_state.h"
#include "tests/child_process.h"
#include "tests/guard.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

class StepWatchTest : public testing::Test {
 protected:
  void add(const ChildProcess& child) {
    ranks_.emplace_back(WorkerProcess{child.pid(), Fd()}, Channel(Fd()));
  }
  /// Moves the time to the next look, and looks.
  std::optional<StepVerdict> look(StepWatch& watch) {
    clock_.advance(watch.next().seconds_left());
    EXPECT_TRUE(watch.next().passed());
    return watch.judge(ranks_);
  }
  static std::chrono::nanoseconds used_by(const ChildProcess& child) {
    return processor_time(child.pid()).value();
  }

  MovedClock clock_;
  std::vector<RankProcess> ranks_;
};

TEST_F(StepWatchTest, AGroupThatSleepsIsSilentAfterOneTimeOut) {
  // Another program, because a sanitizer's own thread computes now and then.
  const auto sleep = [] { ::execlp("sleep", "sleep", "infinity", nullptr); };
  const ChildProcess one(sleep), other(sleep);
  for (const ChildProcess* child : {&one, &other}) {
    // What it took to fall asleep may be added a moment later.
    std::chrono::nanoseconds last{-1};
    ASSERT_TRUE(eventually([&] {
      return process_state(child->pid()) == 'S' && std::exchange(last, used_by(*child)) == last;
    }));
    add(*child);
  }
  StepWatch watch(10);
  watch.moved();
  EXPECT_EQ(watch.next().seconds_left(), 5);
  EXPECT_FALSE(look(watch)) << "the first look only notes what they have used";
  const std::optional<StepVerdict> verdict = look(watch);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->why, StepVerdict::Why::kSilent);
  EXPECT_EQ(verdict->seconds, 10);
  EXPECT_EQ(verdict->rank, -1);
}

TEST_F(StepWatchTest, WhoMovesHasAllItsTimeAgain) {
  const ChildProcess sleeper(sleep_on);
  add(sleeper);
  StepWatch watch(10);
  for (int part = 0; part < 20; ++part) {
    watch.moved();
    ASSERT_FALSE(look(watch)) << part;
  }
}

TEST_F(StepWatchTest, ARankThatComputesHasTenTimeOutsAndThenSpins) {
  const ChildProcess sleeper(sleep_on), spinner(spin_on);
  add(sleeper);
  add(spinner);
  StepWatch watch(0.02);
  watch.moved();
  EXPECT_FALSE(look(watch));
  // By the end it must have used more of the processor than one time-out.
  const auto before = used_by(spinner);
  ASSERT_TRUE(
      eventually([&] { return used_by(spinner) - before > std::chrono::milliseconds(40); }));
  std::optional<StepVerdict> verdict;
  double waited = 0.01;
  for (; !verdict; verdict = look(watch)) waited += watch.next().seconds_left();
  EXPECT_NEAR(waited, 10 * 0.02, 1e-6);
  EXPECT_EQ(verdict->why, StepVerdict::Why::kSpinning);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_NEAR(verdict->seconds, waited, 1e-6);
  EXPECT_GE(verdict->cpu_seconds, 0.04);
}

TEST_F(StepWatchTest, ARankThatComputesButGetsTooLittleOfTheProcessorIsStarved) {
  const ChildProcess spinner(spin_on);
  add(spinner);
  StepWatch watch(3600);  // it never uses that much in this test
  watch.moved();
  std::optional<StepVerdict> verdict;
  while (!verdict) verdict = look(watch);
  EXPECT_EQ(verdict->why, StepVerdict::Why::kStarved);
  EXPECT_EQ(verdict->rank, 0);
  EXPECT_NEAR(verdict->seconds, 36'000, 1);
}

TEST_F(StepWatchTest, NeitherAStoppedRankNorOneThatWaitsComputes) {
  const ChildProcess stopped(spin_on), waits(spin_on);
  add(stopped);
  add(waits);
  ranks_[1].waits = true;
  ::kill(stopped.pid(), SIGSTOP);
  ASSERT_EQ(::waitpid(stopped.pid(), nullptr, WUNTRACED), stopped.pid());
  StepWatch watch(10);
  watch.moved();
  EXPECT_FALSE(look(watch));
  const auto before = used_by(waits);  // a rank that waits may poll meanwhile
  ASSERT_TRUE(eventually([&] { return used_by(waits) - before > std::chrono::milliseconds(2); }));
  const std::optional<StepVerdict> verdict = look(watch);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->why, StepVerdict::Why::kSilent);
}

// The two looks follow each other at once, so that between them the rank gets no millisecond of the
// processor, as if there were none for it. If this process was held up it did get one, and the next
// two looks count.
TEST_F(StepWatchTest, ARankThatWaitsAndGetsNoProcessorIsNotSilent) {
  const ChildProcess waits(spin_on);
  add(waits);
  ranks_[0].waits = true;
  StepWatch watch(10);
  EXPECT_TRUE(eventually([&] {
    watch.moved();
    EXPECT_FALSE(look(watch));
    const auto before = ranks_[0].cpu_seen;
    const std::optional<StepVerdict> verdict = look(watch);
    const bool got_some = ranks_[0].cpu_seen - before >= std::chrono::milliseconds(1);
    EXPECT_EQ(verdict.has_value(), got_some);
    return !got_some;
  }));
}

}  // namespace
}  // namespace shoal
