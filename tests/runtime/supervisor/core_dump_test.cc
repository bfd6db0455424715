// A rank that really dumps core, for many times longer than it may.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <optional>
#include <signal.h>
#include <sys/resource.h>

#include "runtime/base/deadline.h"
#include "runtime/supervisor/process_state.h"
#include "tests/runtime/supervisor/supervisor_fixture.h"

namespace shoal {
namespace {

/// Core files are made in a folder of the test while it lives. If they cannot be, why() says so.
class CoreFiles {
 public:
  CoreFiles() : before_(std::filesystem::current_path()) {
    std::ifstream file("/proc/sys/kernel/core_pattern");
    std::string pattern;
    std::getline(file, pattern);
    struct rlimit limit {};
    ::getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    char folder[] = "/tmp/shoal-cores-XXXXXX";
    if (pattern.empty() || pattern.find_first_of("|@/") != std::string::npos)
      why_ = "core files of this machine go to \"" + pattern + "\"";
    else if (std::getenv("SHOAL_TEST_EMULATOR") != nullptr)
      why_ = "an emulator writes core files in its own way";
    else if (std::getenv("SHOAL_TEST_SANITIZED") != nullptr)
      why_ = "a sanitizer leaves no room for the address space that takes long to dump";
    else if (limit.rlim_max != RLIM_INFINITY || ::setrlimit(RLIMIT_CORE, &limit) != 0)
      why_ = "the size of core files is limited here (ulimit -Hc)";
    else if (::mkdtemp(folder) != nullptr)
      std::filesystem::current_path(folder_ = folder);
  }
  ~CoreFiles() {
    std::filesystem::current_path(before_);
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  CoreFiles(const CoreFiles&) = delete;
  CoreFiles& operator=(const CoreFiles&) = delete;

  const std::string& why() const { return why_; }

 private:
  const std::filesystem::path before_;
  std::string folder_;
  std::string why_;
};

/// Loses a rank that dumps core. *took_s: the seconds from its last step to the start of new ranks.
/// nullopt: its dump has ended by itself, as the kernel ends one when the machine freezes it.
void check_a_dump(std::optional<double>* took_s) {
  Told told;
  Clock::time_point lost;
  SupervisorOptions options = options_for(1);
  options.hooks = hooks_into(&told);
  options.hooks.on_restart = [&](const Failure& why, const RestartCount&) {
    lost = Clock::now();
    told.restarts.push_back(why);
  };
  const std::unique_ptr<Supervisor> supervisor = started(std::move(options));
  ASSERT_NE(supervisor, nullptr);
  const std::vector<int> pids = supervisor->pids();
  testing::internal::CaptureStderr();
  const Clock::time_point began = Clock::now();
  const Attempt<GroupStep> step = supervisor->step(1, "dump");
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(step.ok()) << step.status().to_string();
  EXPECT_NE(step->lost.message().find("rank 1"), std::string::npos) << step->lost.to_string();
  if (step->lost.message().ends_with("core dumped")) return;
  EXPECT_NE(step->lost.message().find("its core file took too long and was cut short"),
            std::string::npos)
      << step->lost.to_string();
  EXPECT_TRUE(step->blames_requests);
  EXPECT_NE(log.find(cat("rank 1 (pid ", pids[1], ") has died and writes a core file")),
            std::string::npos)
      << log;
  ASSERT_EQ(told.restarts.size(), 1u);
  EXPECT_EQ(told.restarts[0].fault, Fault::kDeath);
  for (const int pid : pids) EXPECT_EQ(::kill(pid, 0), -1) << "new ranks start after its end";
  EXPECT_EQ(supervisor->step(2, "again").value().result, "again on 2");
  *took_s = std::chrono::duration<double>(lost - began).count();
}

TEST(CoreDump, OfARankIsADeathThatWaitsForNoEndOfIt) {
  const CoreFiles files;
  if (!files.why().empty()) GTEST_SKIP() << files.why();
  // Its death shows within a second, and two more are for the file. A busy machine may be late.
  constexpr int kMostFrozen = 3, kMostLate = 3;
  std::optional<double> took_s;
  for (int frozen = 0, late = 0; frozen < kMostFrozen && late < kMostLate && !HasFailure();) {
    took_s.reset();
    check_a_dump(&took_s);
    if (took_s && *took_s < 3) return;
    ++(took_s ? late : frozen);
  }
  ADD_FAILURE() << "new ranks started after " << took_s.value_or(-1) << " s";
}

TEST(CoreDump, IsNotSeenInAProcessThatLives) {
  EXPECT_FALSE(dumps_core(::getpid()));
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  return shoal::supervisor_test_main(argc, argv);
}
