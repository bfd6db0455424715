// When a rank has been silent for too long in a start. The ranks are real children that sleep,
// compute or are stopped; only the time moves as the test says.
#include "runtime/supervisor/start_watch.h"

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

constexpr double kLookSeconds = 0.25;  // a look that comes sooner is none

class StartWatchTest : public testing::Test {
 protected:
  StartWatchTest() { ranks_.reserve(2); }  // references to them stay
  RankProcess& add(const ChildProcess& child, Phase phase = Phase::kOpen) {
    ranks_.emplace_back(WorkerProcess{child.pid(), Fd()}, Channel(Fd()));
    ranks_.back().enter(phase);
    return ranks_.back();
  }
  /// Moves the time, looks, and returns what the rank has used of the processor since the last
  /// look.
  std::chrono::nanoseconds look(StartWatch& watch, double seconds = kLookSeconds) {
    const std::chrono::nanoseconds before = ranks_.front().cpu_seen;
    MovedClock::advance(seconds);
    watch.look(ranks_);
    return ranks_.front().cpu_seen - before;
  }

  MovedClock clock_;
  std::vector<RankProcess> ranks_;
};

TEST_F(StartWatchTest, ARankThatSleepsMayBeSilentForAQuarterOfTheStart) {
  // Another program, because a sanitizer's own thread computes now and then.
  const ChildProcess sleeper([] { ::execlp("sleep", "sleep", "infinity", nullptr); });
  ASSERT_TRUE(eventually([&] { return process_state(sleeper.pid()) == 'S'; }));
  const RankProcess& rank = add(sleeper);
  StartWatch watch(40, 1, DeviceKind::kCpu);
  while (seconds_since(rank.heard_at) < 10) {
    EXPECT_FALSE(watch.too_silent(rank));
    (void)look(watch);
    ASSERT_LT(seconds_since(clock_.began()), 20) << "it sleeps, and was found running";
  }
  EXPECT_EQ(watch.too_silent(rank), seconds_since(rank.heard_at));
}

TEST_F(StartWatchTest, ARankThatRunsAndSaysNothingIsSilentToo) {
  const ChildProcess spinner(spin_on);
  const RankProcess& rank = add(spinner);
  StartWatch watch(4, 1, DeviceKind::kCpu);
  for (int looks = 0; looks < 5; ++looks) {
    ASSERT_TRUE(eventually([&] {
      return processor_time(spinner.pid()).value() - rank.cpu_seen > std::chrono::milliseconds(2);
    }));
    (void)look(watch);
  }
  EXPECT_EQ(watch.too_silent(rank), 5 * kLookSeconds);
}

// The looks follow each other at once, so that between most of them the rank gets no millisecond of
// the processor, as if there were none for it.
TEST_F(StartWatchTest, TimeWithoutAProcessorIsNoSilence) {
  const ChildProcess spinner(spin_on);
  const ChildProcess waits_for_it([] { ::execlp("sleep", "sleep", "infinity", nullptr); });
  ASSERT_TRUE(eventually([&] { return process_state(waits_for_it.pid()) == 'S'; }));
  const RankProcess& rank = add(spinner);
  const RankProcess& other = add(waits_for_it);
  StartWatch watch(40, 1, DeviceKind::kCpu);
  (void)look(watch);  // before the first look nobody knows
  double silent_s = kLookSeconds;
  int starved = 0;
  ASSERT_TRUE(eventually([&] {
    if (look(watch) < std::chrono::milliseconds(1)) {
      ++starved;
    } else {
      silent_s += kLookSeconds;
    }
    EXPECT_NEAR(seconds_since(rank.heard_at), silent_s, 1e-6);
    EXPECT_NEAR(seconds_since(other.heard_at), silent_s, 1e-6) << "it waits for the other";
    return starved >= 20;
  }));
}

TEST_F(StartWatchTest, AtMostHalfOfAStartWithoutAProcessorIsNoSilence) {
  const ChildProcess spinner(spin_on);
  const RankProcess& rank = add(spinner);
  StartWatch watch(4, 1, DeviceKind::kCpu);
  int starved = 0;
  ASSERT_TRUE(eventually([&] {
    if (look(watch) < std::chrono::milliseconds(1)) ++starved;
    return starved >= 12;
  }));
  EXPECT_NEAR(seconds_since(clock_.began()) - seconds_since(rank.heard_at), 2, 1e-6);
}

TEST_F(StartWatchTest, ARankThatIsStoppedIsSilentBesideOneWithoutAProcessor) {
  const ChildProcess spinner(spin_on), stopped(sleep_on);
  const RankProcess& rank = add(spinner);
  const RankProcess& other = add(stopped);
  ::kill(stopped.pid(), SIGSTOP);
  ASSERT_EQ(::waitpid(stopped.pid(), nullptr, WUNTRACED), stopped.pid());
  StartWatch watch(40, 5, DeviceKind::kCpu);
  ASSERT_TRUE(eventually([&] {
    (void)look(watch);
    return watch.too_silent(other).has_value();
  }));
  EXPECT_EQ(seconds_since(other.heard_at), seconds_since(clock_.began()));
  EXPECT_LE(seconds_since(rank.heard_at), seconds_since(other.heard_at));
}

TEST_F(StartWatchTest, MoreThanTwoLooksAreNotForgiven) {
  const ChildProcess spinner(spin_on);
  const RankProcess& rank = add(spinner);
  StartWatch watch(4, 1, DeviceKind::kCpu);
  (void)look(watch);
  (void)look(watch, 100);
  EXPECT_GT(watch.too_silent(rank).value_or(0), 99);
}

TEST_F(StartWatchTest, ALoadMayTakeAsLongAsItLikesUnlessItIsStopped) {
  const ChildProcess loads(sleep_on);
  RankProcess& rank = add(loads, Phase::kLoad);
  StartWatch watch(40, 5, DeviceKind::kCpu);
  for (const auto& [phase, compiles] :
       {std::pair(Phase::kLoad, false), {Phase::kTouch, false}, {Phase::kOpen, true}}) {
    rank.enter(phase);
    rank.compiles = compiles;
    (void)look(watch, 1e4);
    EXPECT_FALSE(watch.too_silent(rank));
  }
  ::kill(loads.pid(), SIGSTOP);
  ASSERT_EQ(::waitpid(loads.pid(), nullptr, WUNTRACED), loads.pid());
  EXPECT_EQ(watch.too_silent(rank), 5) << "what was waited for says more than when it was noticed";
}

TEST_F(StartWatchTest, AQuarterIsAtMostFifteenSecondsAndAMinuteOnDevices) {
  const ChildProcess sleeper(sleep_on);
  const RankProcess& rank = add(sleeper);
  const StartWatch host(1e6, 1, DeviceKind::kCpu), device(1e6, 1, DeviceKind::kCuda);
  MovedClock::advance(14.9);
  EXPECT_FALSE(host.too_silent(rank));
  MovedClock::advance(0.2);
  EXPECT_TRUE(host.too_silent(rank));
  MovedClock::advance(44.8);
  EXPECT_FALSE(device.too_silent(rank));
  MovedClock::advance(0.2);
  EXPECT_TRUE(device.too_silent(rank));
}

}  // namespace
}  // namespace shoal
