// A supervisor over real ranks and a real ladder, with work that only moves bytes: this program is
// its own worker.
#include "runtime/supervisor/supervisor.h"

#include <atomic>
#include <cstdio>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "runtime/control/descriptors.h"
#include "tests/in_child.h"
#include "tests/runtime/supervisor/supervisor_fixture.h"

namespace shoal {
namespace {

TEST(Supervisor, StepsReachTheWorkAndItsAnswerComesBack) {
  const auto supervisor = started(options_for(0));
  ASSERT_TRUE(supervisor);
  EXPECT_EQ(supervisor->ready(), (std::vector<std::string>{"rank 0", "rank 1"}));
  EXPECT_EQ(supervisor->report().rung, "memfd");
  for (uint64_t number = 1; number <= 3; ++number) {
    const Attempt<GroupStep> step = supervisor->step(number, cat("plan ", number));
    ASSERT_TRUE(step.ok()) << step.status().to_string();
    EXPECT_EQ(step->result, cat("plan ", number, " on 2"));
  }
}

TEST(Supervisor, ARankThatIsKilledInAStepIsReplacedAndTheStepIsLost) {
  Told told;
  SupervisorOptions options = options_for(2);
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  const Attempt<GroupStep> lost = supervisor->step(1, "die");
  ASSERT_TRUE(lost.ok()) << lost.status().to_string();
  EXPECT_FALSE(lost->result);
  EXPECT_TRUE(lost->blames_requests);
  EXPECT_NE(lost->lost.message().find("rank 1"), std::string::npos) << lost->lost.to_string();
  ASSERT_EQ(told.restarts.size(), 1u);
  EXPECT_EQ(told.restarts[0].fault, Fault::kDeath);
  EXPECT_EQ(told.restarts[0].phase, Phase::kStep);
  EXPECT_EQ(told.restarts[0].rank, 1);
  EXPECT_EQ(told.rungs, std::vector<std::string>{"memfd"});
  const Attempt<GroupStep> again = supervisor->step(2, "more");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->result, "more on 2");
  EXPECT_EQ(supervisor->report().restarts.size(), 1u);
}

TEST(Supervisor, SaysHowLongEachPhaseOfTheLastStartTook) {
  SupervisorOptions options = options_for(2);
  options.ladder.order = {"shm", "memfd"};
  options.ladder.budget.headroom_bytes = int64_t{1} << 60;  // so that shm is refused
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  ASSERT_EQ(supervisor->report().rung, "memfd");
  const PhaseSeconds first = supervisor->start_phases();
  for (const Phase phase : {Phase::kBudget, Phase::kProbe, Phase::kReserve, Phase::kSpawn,
                            Phase::kOpen, Phase::kSelfTest, Phase::kLoad}) {
    ASSERT_TRUE(first.contains(phase)) << phase_name(phase);
    EXPECT_GT(first.at(phase), 0) << phase_name(phase);
    EXPECT_LT(first.at(phase), 60) << phase_name(phase);
  }
  EXPECT_FALSE(first.contains(Phase::kStep) || first.contains(Phase::kIdle));
  ASSERT_TRUE(supervisor->step(1, "die").ok());
  ASSERT_TRUE(supervisor->step(2, "more").ok());
  EXPECT_NE(supervisor->start_phases(), first) << "these are of the restart";
}

TEST(Supervisor, KnowsWhichRankTheOthersWaitFor) {
  const auto supervisor = started(options_for(1));
  ASSERT_TRUE(supervisor);
  EXPECT_EQ(supervisor->collective_seconds(), (std::vector<double>{0, 0}));
  uint64_t number = 0;
  // Rank 1 computes for 0.8 s. Each rank reports after a second, rank 1 perhaps when the step is
  // over for the front.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(supervisor->step(++number, "compute").ok());
  const Deadline deadline = Deadline::after_ms(kGuardMs);
  const auto have_both_told = [&] {
    const std::vector<double> told = supervisor->collective_seconds();
    return told[0] > 0.5 && told[1] > 0;
  };
  while (!have_both_told() && !deadline.passed())
    ASSERT_TRUE(supervisor->step(++number, "more").ok());
  const std::vector<double> first = supervisor->collective_seconds();
  EXPECT_GT(first[0], 0.5) << "it waited for rank 1";
  EXPECT_LT(first[1], first[0]);
  EXPECT_GT(first[1], 0);
  EXPECT_TRUE(eventually([&] {
    return supervisor->step(++number, "more").ok() && supervisor->report().waits.has_value();
  })) << "each rank has told of ten steps";
  EXPECT_EQ(to_text(supervisor->report().waits).find("rank 1 makes the others wait "), 0u);
  ASSERT_TRUE(supervisor->step(++number, "die").ok());
  ASSERT_TRUE(supervisor->step(++number, "more").ok());
  EXPECT_GE(supervisor->collective_seconds()[0], first[0]) << "a restart takes nothing away";
  EXPECT_FALSE(supervisor->report().waits.has_value()) << "these ranks have told nothing yet";
}

// A caller that shows progress on one line of a terminal must know when to clear it.
TEST(Supervisor, EveryStartThatShowsProgressIsSaidToBeOver) {
  std::string events;
  SupervisorOptions options = options_for(2);
  options.hooks.on_progress = [&events](const LoadProgress&) {
    if (!events.ends_with('p')) events += 'p';
  };
  options.hooks.on_start_over = [&events] { events += 'o'; };
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  EXPECT_EQ(events, "po");
  ASSERT_TRUE(supervisor->step(1, "die").ok());
  EXPECT_EQ(events, "popo");
}

TEST(Supervisor, ARungWhoseRanksDieTwiceIsLeft) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  ASSERT_TRUE(supervisor->step(1, "die").ok());
  ASSERT_TRUE(supervisor->step(2, "die").ok());
  EXPECT_EQ(told.rungs, (std::vector<std::string>{"memfd", "tcp"}));
  ASSERT_EQ(supervisor->report().refusals.size(), 1u);
  EXPECT_EQ(supervisor->report().refusals[0].phase, Phase::kStep);
}

/// Loses the ranks three times. From the first restart on no file may be as large as the pool, not
/// even the old one while it is cleared. Returns the rungs of the restarts.
std::string rungs_without_files() {
  ::signal(SIGXFSZ, SIG_IGN);
  Told told;
  SupervisorOptions options = options_for(5);
  options.ladder.order = {"memfd", "cma", "tcp"};
  options.hooks = hooks_into(&told);
  options.hooks.on_restart = [](const Failure&, const RestartCount&) {
    set_soft_limit(RLIMIT_FSIZE, 4096);
  };
  const auto supervisor = started(std::move(options));
  if (!supervisor || supervisor->report().rung != "memfd") return "it does not start on memfd";
  for (uint64_t number = 1; number <= 3; ++number) {
    if (const auto step = supervisor->step(number, "die"); !step.ok())
      return step.status().to_string();
  }
  std::string rungs;
  for (const std::string& rung : told.rungs) rungs += cat(rungs.empty() ? "" : " ", rung);
  return rungs;
}

TEST(Supervisor, ARungIsNotBlamedForTheFailureOfAnother) {
  EXPECT_EQ(in_child(rungs_without_files), "cma cma tcp");
}

TEST(Supervisor, WithoutRestartsALostRankIsTheEnd) {
  const auto supervisor = started(options_for(0));
  ASSERT_TRUE(supervisor);
  const Attempt<GroupStep> step = supervisor->step(1, "die");
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.failure().fault, Fault::kDeath);
  EXPECT_EQ(step.status().code(), Code::kAborted);
  EXPECT_FALSE(supervisor->step(2, "more").ok());
}

TEST(Supervisor, WhoeverKnowsTheWorkMayForbidARestart) {
  for (const int max_restarts : {0, 2}) {
    Told told;
    SupervisorOptions options = options_for(max_restarts);
    options.hooks = hooks_into(&told);
    options.hooks.may_restart = [](const StartControl&) {
      return Status::error(Code::kDataLoss, "the input is gone");
    };
    const auto supervisor = started(std::move(options));
    ASSERT_TRUE(supervisor);
    const Attempt<GroupStep> lost = supervisor->step(1, "die");
    ASSERT_FALSE(lost.ok());
    EXPECT_EQ(lost.status().code(), Code::kDataLoss) << lost.status().to_string();
    EXPECT_EQ(lost.failure().fault, Fault::kOwn);
    EXPECT_EQ(supervisor->step(2, "more").status().code(), Code::kDataLoss) << "it stays lost";
    EXPECT_EQ(told.restarts.size(), 0u);
  }
}

TEST(Supervisor, WhoeverIsAskedHasTheTimeOfAStartAndLearnsThatTheRanksAreGivenUp) {
  SupervisorOptions options = options_for(2);
  std::atomic<bool> asked = false;
  options.hooks.may_restart = [&asked](const StartControl& start) {
    EXPECT_LE(start.deadline.seconds_left(), kGuardSeconds);
    EXPECT_FALSE(start.given_up());
    asked = true;
    EXPECT_TRUE(eventually(start.given_up));
    return Status::error(Code::kCancelled, "nobody waits").blamed_on(Fault::kGivenUp);
  };
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  std::thread stops([&] {
    EXPECT_TRUE(eventually([&] { return asked.load(); }));
    supervisor->give_up();
  });
  const Attempt<GroupStep> lost = supervisor->step(1, "die");
  stops.join();
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.failure().fault, Fault::kGivenUp) << lost.status().to_string();
  EXPECT_EQ(lost.failure().why.code(), Code::kCancelled);
  EXPECT_GT(lost.failure().why.causes().size(), 1u) << "it says why the ranks were lost";
}

TEST(Supervisor, RanksThatLoadedSomethingElseRunNoStep) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.hooks = hooks_into(&told);
  options.hooks.may_continue = [](const std::vector<std::string>& ready, const StartControl&) {
    EXPECT_EQ(ready, (std::vector<std::string>{"rank 0", "rank 1"}));
    return Status::error(Code::kDataLoss, "other weights").blamed_on(Fault::kModelChanged);
  };
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor) << "the first ranks are what all others are compared with";
  const Attempt<GroupStep> lost = supervisor->step(1, "die");
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.failure().fault, Fault::kModelChanged);
  EXPECT_EQ(lost.status().code(), Code::kDataLoss) << lost.status().to_string();
  EXPECT_TRUE(told.rungs.empty()) << "they never counted as running";
  EXPECT_EQ(supervisor->step(2, "more").status().code(), Code::kDataLoss) << "it stays lost";
}

TEST(Supervisor, RanksInheritTheDescriptorsOfTheirWorkAtEveryStart) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  std::fputs("contents", file);
  std::fflush(file);
  const Fd fd(::fcntl(fileno(file), F_DUPFD_CLOEXEC, kFirstWorkFd));
  std::fclose(file);
  ASSERT_TRUE(fd.valid());
  SupervisorOptions options = options_for(2);
  options.group.work_fds = {fd.get()};
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  EXPECT_EQ(supervisor->step(1, cat("read ", fd.get()))->result, "contents");
  ASSERT_TRUE(supervisor->step(2, "die").ok());
  EXPECT_EQ(supervisor->step(3, cat("read ", fd.get()))->result, "contents");
  EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC) << "it stays close-on-exec in the front";
}

// A kill from outside blames no request, and after enough work it costs no restart either.
TEST(Supervisor, KillsFromOutsideCostNothingWhereTheRanksMakeProgress) {
  std::vector<bool> counted;
  SupervisorOptions options = options_for(1);
  options.hooks.on_restart = [&counted](const Failure& why, const RestartCount& count) {
    EXPECT_EQ(why.fault, Fault::kOutside) << why.why.to_string();
    EXPECT_EQ(count.max_restarts, 1);
    counted.push_back(count.counts);
  };
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  uint64_t number = 0;
  for (int kill = 0; kill < 3; ++kill) {
    for (int64_t i = 0; i < RestartPolicy::kStepsThatEarn; ++i)
      ASSERT_TRUE(supervisor->step(++number, "more")->result) << number;
    const Attempt<GroupStep> lost = supervisor->step(++number, "be killed");
    ASSERT_TRUE(lost.ok()) << lost.status().to_string();
    EXPECT_FALSE(lost->blames_requests);
    EXPECT_TRUE(lost->begun) << "its requests lost what they had";
  }
  EXPECT_TRUE(supervisor->step(++number, "be killed").ok()) << "the one restart that is granted";
  EXPECT_EQ(counted, (std::vector<bool>{false, false, false, true}));
  EXPECT_FALSE(supervisor->step(++number, "be killed").ok());
}

TEST(Supervisor, RestartsAreCounted) {
  const auto supervisor = started(options_for(1));
  ASSERT_TRUE(supervisor);
  ASSERT_TRUE(supervisor->step(1, "die").ok());
  const Attempt<GroupStep> step = supervisor->step(2, "die");
  ASSERT_FALSE(step.ok());
  EXPECT_NE(step.status().to_string().find("max_restarts"), std::string::npos)
      << step.status().to_string();
}

TEST(Supervisor, TheLastRestartsAreListedAndAllAreCounted) {
  constexpr int kRestarts = static_cast<int>(TransportReport::kMostRestarts) + 1;
  const auto supervisor = started(options_for(kRestarts));
  ASSERT_TRUE(supervisor);
  uint64_t number = 0;
  while (number < kRestarts) ASSERT_TRUE(supervisor->step(++number, "be killed").ok()) << number;
  const Attempt<GroupStep> step = supervisor->step(++number, "be killed");
  ASSERT_FALSE(step.ok());
  EXPECT_NE(step.status().to_string().find("started again 21 times"), std::string::npos)
      << step.status().to_string();
  EXPECT_EQ(supervisor->report().restart_count, kRestarts);
  EXPECT_EQ(supervisor->report().restarts.size(), TransportReport::kMostRestarts);
}

TEST(Supervisor, ARanksOwnReasonIsNotCuredByARestart) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  const Attempt<GroupStep> step = supervisor->step(1, "own");
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.failure().fault, Fault::kOwn);
  EXPECT_NE(step.status().to_string().find("cannot compute this"), std::string::npos);
  EXPECT_TRUE(told.restarts.empty());
}

TEST(Supervisor, AStartThatCannotLoadIsNotRepeatedOnAnotherRung) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.group.start.work = "broken";
  options.hooks = hooks_into(&told);
  const auto supervisor = Supervisor::start(std::move(options), gather_host_facts({}));
  ASSERT_FALSE(supervisor.ok());
  EXPECT_EQ(supervisor.failure().fault, Fault::kOwn);
  EXPECT_EQ(supervisor.status().code(), Code::kNotFound);
  EXPECT_TRUE(told.restarts.empty());
}

TEST(Supervisor, ARankThatDiesWhileIdleIsNoticedAndTheNextStepIsLostWithoutBlame) {
  const auto supervisor = started(options_for(2));
  ASSERT_TRUE(supervisor);
  ASSERT_TRUE(supervisor->step(1, "first").ok());
  EXPECT_FALSE(supervisor->watch()) << "all is well";
  ::kill(supervisor->pids()[0], SIGKILL);
  const Deadline deadline = Deadline::after_ms(kGuardMs);
  while (supervisor->report().restarts.empty() && !deadline.passed()) {
    const std::optional<Failure> failure = supervisor->watch();
    ASSERT_FALSE(failure) << failure->why.to_string();
  }
  const Attempt<GroupStep> lost = supervisor->step(2, "second");
  ASSERT_TRUE(lost.ok());
  EXPECT_FALSE(lost->result);
  EXPECT_FALSE(lost->blames_requests) << "no request of this step may be its cause";
  EXPECT_FALSE(lost->begun);
  EXPECT_EQ(supervisor->step(3, "third")->result, "third on 2");
}

TEST(Supervisor, ALossThatIsFinalStaysFinal) {
  Told told;
  SupervisorOptions options = options_for(5);
  options.hooks = hooks_into(&told);
  const auto supervisor = started(std::move(options));
  ASSERT_TRUE(supervisor);
  EXPECT_FALSE(supervisor->lost());
  supervisor->give_up();
  ::kill(supervisor->pids()[0], SIGKILL);
  const Deadline deadline = Deadline::after_ms(kGuardMs);
  std::optional<Failure> final;
  while (!final && !deadline.passed()) final = supervisor->watch();
  ASSERT_TRUE(final);
  ASSERT_TRUE(supervisor->lost());
  const size_t restarts = told.restarts.size();
  const Attempt<GroupStep> step = supervisor->step(1, "more");
  ASSERT_FALSE(step.ok()) << "nobody asked for these ranks again";
  EXPECT_EQ(step.status().to_string(), final->why.to_string());
  EXPECT_TRUE(supervisor->watch());
  EXPECT_EQ(told.restarts.size(), restarts);
}

TEST(Supervisor, WhoeverWatchesLearnsOfAFinalLossWhileOthersStep) {
  const auto supervisor = started(options_for(0));
  ASSERT_TRUE(supervisor);
  ASSERT_FALSE(supervisor->step(1, "die").ok());
  std::atomic<int64_t> steps = 0;
  std::atomic<bool> over = false;
  std::thread loop([&] {
    for (; !over; ++steps) EXPECT_FALSE(supervisor->step(2, "more").ok());
  });
  constexpr int kLooks = 10'000;
  int told = 0;
  while (steps == 0) std::this_thread::yield();
  for (int look = 0; look < kLooks; ++look) told += supervisor->watch().has_value() ? 1 : 0;
  over = true;
  loop.join();
  EXPECT_EQ(told, kLooks);
  EXPECT_EQ(supervisor->restarting_s(), 0);
}

TEST(Supervisor, GivingUpEndsARestartThatNobodyNeeds) {
  const auto supervisor = started(options_for(5));
  ASSERT_TRUE(supervisor);
  supervisor->give_up();
  const Attempt<GroupStep> step = supervisor->step(1, "die");
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.failure().fault, Fault::kGivenUp);
  EXPECT_EQ(step.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  return shoal::supervisor_test_main(argc, argv);
}
