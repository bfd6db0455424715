// What a supervisor does with the devices of ranks that were lost. The ranks are real, and so is a
// process that no kill ends; the devices are emulated. This program is its own worker.
#include <atomic>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <optional>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "runtime/supervisor/device_holders.h"
#include "runtime/supervisor/process_state.h"
#include "tests/moved_clock.h"
#include "tests/runtime/supervisor/held_process.h"
#include "tests/runtime/supervisor/supervisor_fixture.h"

namespace shoal {
namespace {

/// "GPU 1 (GPU-..., second)", as the emulated module has them.
std::vector<GpuName> two_gpus() {
  return {{0, "GPU-656d756c-6174-6564-2047-505500000000", "first"},
          {1, "GPU-656d756c-6174-6564-2047-505500000001", "second"}};
}

SupervisorOptions options_on_devices(Told* told) {
  SupervisorOptions options = options_for(1);
  options.group.start.device = DeviceKind::kCuda;
  options.group.start.cuda_module = SHOAL_EMULATED_MODULE;
  options.group.start.gpus = two_gpus();
  options.hooks = hooks_into(told);
  return options;
}

/// Rank 0 of this group, which no kill ends as long as this lives. Rank 1 dies in a step.
class SupervisorDevice : public ::testing::Test {
 protected:
  /// on_shortage gets why the ranks cannot be started yet.
  bool start(std::function<void(const Failure&)> on_shortage) {
    SupervisorOptions options = options_on_devices(&told_);
    options.hooks.on_shortage = [this, on_shortage = std::move(on_shortage)](const Failure& why,
                                                                             double seconds) {
      told_.pauses.push_back(seconds);
      on_shortage(why);
    };
    options.answer_s = 1e9;
    supervisor_ = started(std::move(options));
    if (!supervisor_) return false;
    pid_ = supervisor_->pids()[0];
    held_.emplace(pid_);
    return held_->holds();
  }

  Told told_;
  std::unique_ptr<Supervisor> supervisor_;
  pid_t pid_ = -1;
  std::optional<HeldProcess> held_;
};

TEST_F(SupervisorDevice, IsWaitedForUntilTheProcessThatHadItIsGone) {
  std::string said;
  const bool holds = start([&](const Failure& why) {
    said = why.why.to_string();
    EXPECT_EQ(why.fault, Fault::kShortage) << said;
    EXPECT_EQ(::kill(pid_, 0), 0) << "it is still there";
    if (told_.pauses.size() == 2) held_->release();
  });
  if (!holds) GTEST_SKIP() << "this kernel lets nobody trace a sibling here";
  const Attempt<GroupStep> lost = supervisor_->step(1, "die");
  ASSERT_TRUE(lost.ok()) << lost.status().to_string();
  EXPECT_GE(told_.pauses.size(), 2u);
  for (const std::string& named :
       {cat("rank 0 (pid ", pid_, ", state t)"), cat("holds ", to_text(two_gpus()[0]))})
    EXPECT_NE(said.find(named), std::string::npos) << said;
  EXPECT_EQ(told_.restarts.size(), 1u);
  EXPECT_EQ(::kill(pid_, 0), -1) << "it has been reaped";
  EXPECT_EQ(supervisor_->step(2, "more")->result, "more on 2");
}

TEST_F(SupervisorDevice, IsWaitedForUntilTheStartHasToEnd) {
  std::atomic<int> tries = 0;
  if (!start([&](const Failure&) { ++tries; }))
    GTEST_SKIP() << "this kernel lets nobody trace a sibling here";
  std::atomic<bool> over = false;
  std::optional<MovedClock> clock;
  std::thread time([&] {
    // The process is left behind while the clock runs.
    if (!eventually([&] { return over || tries > 0; })) return;
    clock.emplace();
    for (int seen = 0; eventually([&] { return over || tries > seen; }) && !over; seen = tries)
      MovedClock::advance(kGuardSeconds / 4);
    while (!over) MovedClock::advance(kGuardSeconds);
  });
  const Attempt<GroupStep> lost = supervisor_->step(1, "die");
  over = true;
  time.join();
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.failure().fault, Fault::kShortage);
  EXPECT_EQ(lost.failure().rank, 0);
  for (const std::string& named : {cat("rank 0 (pid ", pid_, ", state t)"), to_text(two_gpus()[0]),
                                   std::string("with 1 restart, in which ")})
    EXPECT_NE(lost.status().to_string().find(named), std::string::npos)
        << lost.status().to_string();
}

/// The first process that the calling thread has started, and has not reaped yet.
pid_t first_child() {
  pid_t child = -1;
  std::ifstream("/proc/thread-self/children") >> child;
  return child;
}

/// Makes rank 0 of a group hang in the group's first start: it spins while it opens the first rung,
/// and while this object traces it, its process does not end, not even by SIGKILL. The clock is
/// moved until the front has refused the rung because rank 0 is silent.
class HungInFirstStart {
 public:
  explicit HungInFirstStart(SupervisorOptions* options) {
    options->group.startup_timeout_s = 1e6;  // no phase of devices has more than a minute of it
    options->group.explain_ms = 0;           // a rank that hangs like this does not answer
    options->hooks.on_phase_now = [this](Phase phase, double) {
      if (phase == Phase::kOpen && !held_) hold();
    };
    options->ladder.on_refused = [this](const Refusal&, const std::string&, bool) {
      refused_ = true;
    };
    ::setenv("SHOAL_TEST_FAULT", "0:open:spin", 1);
  }
  ~HungInFirstStart() {
    refused_ = true;
    if (time_.joinable()) time_.join();
    ::unsetenv("SHOAL_TEST_FAULT");
  }

  bool holds() const {
    EXPECT_TRUE(held_) << "no rank has opened its transport";
    return held_ && held_->holds();
  }
  pid_t pid() const { return pid_; }
  void let_time_run() { clock_.reset(); }
  void release() { held_->release(); }

 private:
  /// Then it is silent for too long, and then it does not end soon.
  void hold() {
    pid_ = first_child();
    held_.emplace(pid_);
    MovedClock::advance(1e3);
    time_ = std::thread([this] {
      if (!held_->holds()) return;
      (void)eventually([this] { return refused_ || process_state(pid_) == 't'; });
      (void)eventually([this] {
        if (!refused_) MovedClock::advance(0.5);
        return refused_.load();
      });
    });
  }

  std::optional<MovedClock> clock_{std::in_place};
  std::optional<HeldProcess> held_;
  pid_t pid_ = -1;
  std::atomic<bool> refused_ = false;
  std::thread time_;
};

TEST(SupervisorDeviceAtFirst, TheNextRungOfTheFirstStartWaitsForTheDeviceToo) {
  Told told;
  SupervisorOptions options = options_on_devices(&told);
  HungInFirstStart rank0(&options);
  std::string said;
  options.hooks.on_shortage = [&](const Failure& why, double seconds) {
    said = why.why.to_string();
    EXPECT_EQ(::kill(rank0.pid(), 0), 0) << "it is still there";
    told.pauses.push_back(seconds);
    rank0.let_time_run();
    if (told.pauses.size() == 2) rank0.release();
  };
  const auto supervisor = started(std::move(options));
  if (!rank0.holds()) GTEST_SKIP() << "this kernel lets nobody trace a sibling here";
  ASSERT_TRUE(supervisor);
  EXPECT_GE(told.pauses.size(), 2u);
  for (const std::string& named :
       {cat("rank 0 (pid ", rank0.pid(), ", state t)"), cat("holds ", to_text(two_gpus()[0]))})
    EXPECT_NE(said.find(named), std::string::npos) << said;
  EXPECT_EQ(supervisor->report().rung, "tcp");
  EXPECT_EQ(supervisor->step(1, "more")->result, "more on 2");
}

TEST(DeviceHolders, AProcessHoldsItsDeviceUntilItHasEnded) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  RankStart start;
  start.device = DeviceKind::kCuda;
  start.ranks_per_gpu = 2;
  start.gpus = two_gpus();
  DeviceHolders holders(start);
  EXPECT_FALSE(holders.held());
  holders.lost({100, 101, child, 103});
  holders.left_behind(2, child);
  ASSERT_TRUE(holders.any());
  const std::optional<Failure> held = holders.held();
  ASSERT_TRUE(held);
  EXPECT_EQ(held->rank, 2);
  EXPECT_EQ(held->why.code(), Code::kAborted);
  EXPECT_NE(held->why.message().find(cat("rank 2 (pid ", child, ", state ")), std::string::npos)
      << held->why.to_string();
  EXPECT_NE(held->why.message().find(to_text(two_gpus()[1])), std::string::npos)
      << held->why.to_string();
  EXPECT_EQ(holders.ended_text(2), "");
  EXPECT_EQ(holders.ended_text(1),
            cat("rank 1 (pid 101), which had ", to_text(two_gpus()[0]), ", has ended"));
  EXPECT_EQ(holders.ended_text(kFrontRank), "");
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(holders.held());
  EXPECT_FALSE(holders.any());
  EXPECT_EQ(::kill(child, 0), -1) << "it has been reaped";
  EXPECT_NE(holders.ended_text(2), "");
}

TEST(DeviceHolders, RanksOfTheCpuHoldNone) {
  DeviceHolders holders{RankStart()};
  holders.lost({100});
  holders.left_behind(0, ::getpid());
  EXPECT_FALSE(holders.any());
  EXPECT_FALSE(holders.held());
  EXPECT_EQ(holders.ended_text(0), "");
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  return shoal::supervisor_test_main(argc, argv);
}
