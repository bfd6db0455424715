// What a supervisor does about ranks that do not answer in a step. The ranks are real: this program
// is its own worker. Time passes for the front as the tests say.
#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/supervisor/process_state.h"
#include "runtime/supervisor/supervisor.h"
#include "tests/moved_clock.h"
#include "tests/runtime/supervisor/supervisor_fixture.h"

namespace shoal {
namespace {

TEST(SupervisorHang, AStoppedRankCostsTheRungAndTheRequestsNothing) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.group.step_timeout_s = 0.5;
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  for (uint64_t number = 1; number <= 3; ++number) {
    const Attempt<GroupStep> lost = supervisor->step(number, "stop");
    ASSERT_TRUE(lost.ok());
    EXPECT_FALSE(lost->blames_requests) << "no request stops a rank";
    EXPECT_EQ(told.restarts.back().fault, Fault::kHeldUp);
  }
  EXPECT_EQ(supervisor->report().rung, "memfd");
}

// A caller may have used some of the time that a start has.
TEST(SupervisorHang, AFirstStartEndsByTheMomentThatItIsTold) {
  ::setenv("SHOAL_TEST_FAULT", "0:load:stop", 1);
  SupervisorOptions options = options_for(5);
  options.group.explain_ms = 0;  // this rank does not answer
  options.start_by = Deadline::after_ms(0);
  const Status status = Supervisor::start(std::move(options), gather_host_facts({})).status();
  ::unsetenv("SHOAL_TEST_FAULT");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.to_string().find("startup_timeout"), std::string::npos) << status.to_string();
}

/// Rank 1 of a supervisor's first group, while a step runs.
class RankOfStep {
 public:
  explicit RankOfStep(const Supervisor& supervisor) : pids_(supervisor.pids()) {}

  /// Waits until the rank has used this much more processor time, or is gone.
  bool has_used(std::chrono::milliseconds more) {
    seen_ += more;
    return eventually([this] {
      const auto used = processor_time(pids_[1]);
      if (!base_ && used) base_ = used;
      return !used || *used - *base_ >= seen_;
    });
  }
  /// Lets time pass, but only while rank 0 sleeps, until rank 0 has answered the question what it
  /// waits for, after which it ends. Then until the front waits for no more answers, which it does
  /// for kExplainMs.
  void pass_until_answered() const {
    EXPECT_TRUE(eventually([this] {
      const char state = process_state(pids_[0]);
      if (state == 'S') MovedClock::advance(0.02);
      return state == 'Z' || state == '?';
    }));
    MovedClock::advance(1e-3 * kExplainMs);
  }
  static constexpr int64_t kExplainMs = 1'000'000;

 private:
  const std::vector<int> pids_;
  std::optional<std::chrono::nanoseconds> base_;
  std::chrono::nanoseconds seen_{0};
};

TEST(SupervisorHang, ARankThatComputesIsNotHung) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.group.step_timeout_s = 0.5;
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  const MovedClock clock;
  std::thread time([rank = RankOfStep(*supervisor)]() mutable {
    // Twice the time-out passes while it computes for 0.8 s.
    for (int i = 0; i < 7 && rank.has_used(std::chrono::milliseconds(100)); ++i)
      MovedClock::advance(0.15);
  });
  const Attempt<GroupStep> step = supervisor->step(1, "compute");
  time.join();
  ASSERT_TRUE(step.ok()) << step.status().to_string();
  EXPECT_EQ(step->result, "compute on 2") << step->lost.to_string();
  EXPECT_TRUE(told.restarts.empty());
}

TEST(SupervisorHang, ARankThatSpinsIsEndedAfterTenTimeOutsAndTheRungStays) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.group.step_timeout_s = 0.2;
  options.group.explain_ms = RankOfStep::kExplainMs;
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  for (uint64_t number = 1; number <= 2; ++number) {
    std::optional<MovedClock> clock(std::in_place);
    std::thread time([rank = RankOfStep(*supervisor)]() mutable {
      MovedClock::advance(0.1);
      if (!rank.has_used(std::chrono::milliseconds(500))) return;
      MovedClock::advance(1.8);
      if (rank.has_used(std::chrono::milliseconds(300))) rank.pass_until_answered();
    });
    const Attempt<GroupStep> lost = supervisor->step(number, "spin");
    time.join();
    ASSERT_TRUE(lost.ok()) << lost.status().to_string();
    EXPECT_TRUE(lost->blames_requests) << "what it computes is a request's";
    EXPECT_EQ(told.restarts.back().fault, Fault::kSpinning);
    EXPECT_EQ(told.restarts.back().rank, 1);
    EXPECT_NE(lost->lost.message().find("rank 1 (step"), std::string::npos);
    EXPECT_NE(lost->lost.message().find("it spins"), std::string::npos) << lost->lost.message();
  }
  EXPECT_EQ(supervisor->report().rung, "memfd");
}

TEST(SupervisorHang, AThreadThatWaitsForItsOwnTeamDoesNotCompute) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.group.step_timeout_s = 0.25;
  options.group.explain_ms = RankOfStep::kExplainMs;
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  const MovedClock clock;
  std::thread time([rank = RankOfStep(*supervisor)] { rank.pass_until_answered(); });
  const Attempt<GroupStep> lost = supervisor->step(1, "stuck team");
  time.join();
  ASSERT_TRUE(lost.ok());
  EXPECT_NE(lost->lost.message().find("in phase step 1; rank 1"), std::string::npos)
      << lost->lost.message();
}

TEST(SupervisorHang, AStepThatNobodyWaitsForHasASecondLeft) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.group.step_timeout_s = 1e6;
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  const MovedClock clock;
  std::thread time([&supervisor, pid = supervisor->pids()[1]] {
    EXPECT_TRUE(eventually([pid] { return process_state(pid) == 'T'; }));
    supervisor->give_up();
    // The step looks several times a second whether it was given up, by a clock that stands still.
    EXPECT_TRUE(eventually([&supervisor] {
      MovedClock::advance(0.1);
      return supervisor->lost().has_value();
    }));
  });
  const Attempt<GroupStep> step = supervisor->step(7, "stop");
  time.join();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.failure().fault, Fault::kGivenUp);
  EXPECT_EQ(step.status().code(), Code::kCancelled);
  EXPECT_EQ(step.status().message(), "the ranks were given up in phase step 7");
  EXPECT_TRUE(told.restarts.empty());
}

TEST(SupervisorHang, AStepThatEndsWithinThatSecondHasAResult) {
  const auto supervisor = started(options_for(5));
  ASSERT_TRUE(supervisor);
  supervisor->give_up();
  const MovedClock clock;
  const Attempt<GroupStep> step = supervisor->step(1, "quick");
  ASSERT_TRUE(step.ok()) << step.status().to_string();
  EXPECT_EQ(step->result, "quick on 2");
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  return shoal::supervisor_test_main(argc, argv);
}
