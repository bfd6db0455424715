// What a supervisor does if something runs out while it starts lost ranks again. The ranks and the
// limits are real. This program is its own worker.
#include <atomic>
#include <functional>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <thread>

#include "runtime/supervisor/supervisor.h"
#include "tests/moved_clock.h"
#include "tests/runtime/supervisor/supervisor_fixture.h"

namespace shoal {
namespace {

/// A shortage of descriptors that begins with the restart. on_shortage gets the number of the try
/// that has failed.
SupervisorOptions short_of_descriptors(Told* told, std::function<void(int)> on_shortage) {
  SupervisorOptions options = options_for(1);
  options.hooks = hooks_into(told);
  options.hooks.on_restart = [told](const Failure& why, const RestartCount&) {
    told->restarts.push_back(why);
    set_soft_limit(RLIMIT_NOFILE, 5);
  };
  options.hooks.on_shortage = [told, on_shortage = std::move(on_shortage)](const Failure& why,
                                                                           double seconds) {
    EXPECT_EQ(why.fault, Fault::kShortage) << why.why.to_string();
    told->pauses.push_back(seconds);
    on_shortage(static_cast<int>(told->pauses.size()));
  };
  return options;
}

TEST(SupervisorShortage, AShortageIsWaitedOutAndCostsOneRestart) {
  Told told;
  const auto supervisor = started(short_of_descriptors(&told, [](int tries) {
    if (tries == 4) set_soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
  }));
  ASSERT_TRUE(supervisor);
  const Attempt<GroupStep> lost = supervisor->step(1, "die");
  ASSERT_TRUE(lost.ok()) << lost.status().to_string();
  EXPECT_EQ(told.pauses, (std::vector<double>{0.1, 0.2, 0.4, 0.8}));
  EXPECT_EQ(told.restarts.size(), 1u);
  EXPECT_EQ(told.rungs, std::vector<std::string>{"memfd"});
  EXPECT_EQ(supervisor->report().restarts.size(), 1u);
  EXPECT_TRUE(supervisor->report().refusals.empty());
  EXPECT_EQ(supervisor->step(2, "more")->result, "more on 2");
  EXPECT_EQ(supervisor->restarting_s(), 0);
}

TEST(SupervisorShortage, OneRankWaitsToo) {
  Told told;
  SupervisorOptions options = short_of_descriptors(&told, [](int tries) {
    if (tries == 2) set_soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
  });
  options.group.world_size = 1;
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  ::kill(supervisor->pids()[0], SIGKILL);
  const Attempt<GroupStep> lost = supervisor->step(1, "more");
  ASSERT_TRUE(lost.ok()) << lost.status().to_string();
  EXPECT_EQ(told.pauses.size(), 2u);
  EXPECT_EQ(supervisor->step(2, "more")->result, "more on 1");
}

TEST(SupervisorShortage, StepAnswersWhileAShortageIsWaitedOut) {
  Told told;
  std::atomic<bool> over = false;
  SupervisorOptions options = short_of_descriptors(&told, [&over](int) {
    if (over) set_soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
  });
  options.answer_s = 0.02;
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  EXPECT_TRUE(supervisor->step(1, "die")->blames_requests);
  for (uint64_t number = 2; number < 12; ++number) {
    const Attempt<GroupStep> held = supervisor->step(number, "more");
    ASSERT_TRUE(held.ok()) << held.status().to_string();
    EXPECT_FALSE(held->result);
    EXPECT_FALSE(held->blames_requests || held->begun);
    EXPECT_NE(held->lost.message().find("rank 1"), std::string::npos) << "why there are no ranks";
    EXPECT_FALSE(supervisor->watch());
    EXPECT_GT(supervisor->restarting_s(), 0);
  }
  over = true;
  Attempt<GroupStep> step = supervisor->step(12, "more");
  for (uint64_t number = 13; step.ok() && !step->result; ++number)
    step = supervisor->step(number, "more");
  ASSERT_TRUE(step.ok()) << step.status().to_string();
  EXPECT_EQ(step->result, "more on 2");
}

TEST(SupervisorShortage, AShortageIsWaitedOutUntilTheStartHasToEnd) {
  Told told;
  std::atomic<int> tries = 0;
  SupervisorOptions options = short_of_descriptors(&told, [&tries](int number) { tries = number; });
  options.answer_s = 1e9;
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  const MovedClock clock;
  std::atomic<bool> over = false;
  std::thread time([&] {
    for (int seen = 0; eventually([&] { return over || tries > seen; }) && !over; seen = tries)
      MovedClock::advance(kGuardSeconds / 4);
    while (!over) MovedClock::advance(kGuardSeconds);
  });
  const Attempt<GroupStep> lost = supervisor->step(1, "die");
  over = true;
  time.join();
  set_soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.failure().fault, Fault::kShortage);
  EXPECT_NE(lost.status().message().find("with 1 restart, in which "), std::string::npos)
      << lost.status().to_string();
  EXPECT_NE(lost.status().to_string().find("ulimit -n"), std::string::npos)
      << lost.status().to_string();
}

// Only another rung starts in the shortage, and its ranks find what no other try would cure.
TEST(SupervisorShortage, AShortageDoesNotHideWhatRanksOfTheNextRungRefuse) {
  ::signal(SIGXFSZ, SIG_IGN);
  Told told;
  SupervisorOptions options = options_for(1);
  options.hooks = hooks_into(&told);
  options.hooks.on_restart = [](const Failure&, const RestartCount&) {
    set_soft_limit(RLIMIT_FSIZE, 4096);  // there is no pool for memfd
  };
  options.hooks.on_shortage = [&told](const Failure&, double seconds) {
    told.pauses.push_back(seconds);
    set_soft_limit(RLIMIT_FSIZE, RLIM_INFINITY);
  };
  std::string begun_over;
  options.ladder.on_phase = [&begun_over](Phase phase, double, const std::string& rung) {
    if (phase == Phase::kProbe) begun_over = rung;
  };
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  supervisor->set_work("refused");
  const Attempt<GroupStep> lost = supervisor->step(1, "die");
  set_soft_limit(RLIMIT_FSIZE, RLIM_INFINITY);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.failure().fault, Fault::kPolicy);
  EXPECT_GE(lost.failure().rank, 0);
  EXPECT_EQ(begun_over, "tcp");
  EXPECT_NE(lost.status().to_string().find("the bits would be others"), std::string::npos)
      << lost.status().to_string();
  EXPECT_TRUE(told.pauses.empty()) << "nothing is waited for";
}

TEST(SupervisorShortage, GivingUpEndsTheWaitForAShortage) {
  Told told;
  std::atomic<int> tries = 0;
  SupervisorOptions options = short_of_descriptors(&told, [&tries](int number) { tries = number; });
  options.answer_s = 0.01;
  auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  ASSERT_TRUE(supervisor->step(1, "die").ok());
  const MovedClock clock;  // it stands still, so that nothing but giving up ends the pause
  ASSERT_TRUE(eventually([&] { return tries > 0; }));
  supervisor->give_up();
  EXPECT_TRUE(eventually([&] { return supervisor->lost().has_value(); }));
  EXPECT_EQ(supervisor->lost()->fault, Fault::kGivenUp);
  supervisor.reset();
  set_soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  return shoal::supervisor_test_main(argc, argv);
}
