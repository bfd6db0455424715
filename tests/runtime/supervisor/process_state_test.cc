// What keeps a process from running. The processes, signals and cgroups are real.
#include "runtime/supervisor/process_state.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/cat.h"
#include "tests/child_process.h"
#include "tests/guard.h"

namespace shoal {
namespace {

bool write_to(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text << std::flush;
  return out.good();
}

TEST(ProcessState, AStopIsSeen) {
  const ChildProcess child(sleep_on);
  EXPECT_TRUE(eventually([&] { return process_state(child.pid()) == 'S'; }));
  EXPECT_FALSE(is_stopped(child.pid()));
  ::kill(child.pid(), SIGSTOP);
  EXPECT_TRUE(eventually([&] { return is_stopped(child.pid()); }));
  EXPECT_FALSE(is_frozen(child.pid()));
  ::kill(child.pid(), SIGCONT);
  EXPECT_TRUE(eventually([&] { return !is_stopped(child.pid()); }));
}

TEST(ProcessState, AFrozenCgroupIsSeen) {
  struct Place {
    const char* root;
    const char* file;
    const char* frozen;
    const char* thawed;
  };
  const std::string name = cat("shoal-test-", ::getpid());
  for (const Place& place : {Place{"/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"},
                             Place{"/sys/fs/cgroup", "cgroup.freeze", "1", "0"}}) {
    const std::filesystem::path group = std::filesystem::path(place.root) / name;
    std::error_code error;
    if (!std::filesystem::create_directory(group, error)) continue;
    bool tried = false;
    {
      const ChildProcess child(sleep_on);
      if (std::filesystem::exists(group / place.file) &&
          write_to(group / "cgroup.procs", cat(child.pid()))) {
        tried = true;
        EXPECT_FALSE(is_frozen(child.pid()));
        EXPECT_TRUE(write_to(group / place.file, place.frozen));
        EXPECT_TRUE(eventually([&] { return is_frozen(child.pid()); }));
        EXPECT_TRUE(write_to(group / place.file, place.thawed));
        EXPECT_TRUE(eventually([&] { return !is_frozen(child.pid()); }));
      }
    }
    EXPECT_TRUE(eventually([&] { return std::filesystem::remove(group, error); }));
    if (tried) return;
  }
  GTEST_SKIP() << "no cgroup can be made and frozen here";
}

TEST(ProcessState, OnlyWhoComputesUsesTheProcessor) {
  const ChildProcess sleeper(sleep_on), spinner(spin_on);
  EXPECT_TRUE(eventually([&] { return process_state(sleeper.pid()) == 'S'; }));
  const auto busy = processor_time(spinner.pid());
  ASSERT_TRUE(busy && processor_time(sleeper.pid()));
  EXPECT_TRUE(eventually(
      [&] { return *processor_time(spinner.pid()) > *busy + std::chrono::milliseconds(20); }));
  // What it took to fall asleep may be added a moment later, but then nothing more is.
  const auto used_since_last_look = [&, last = std::chrono::nanoseconds(-1)]() mutable {
    return std::exchange(last, *processor_time(sleeper.pid())) != last;
  };
  EXPECT_TRUE(eventually([&, look = used_since_last_look]() mutable { return !look(); }));
}

TEST(ProcessState, OfAProcessThatIsGoneNothingIsKnown) {
  pid_t gone = 0;
  {
    const ChildProcess child(sleep_on);
    gone = child.pid();
  }
  EXPECT_EQ(process_state(gone), '?');
  EXPECT_FALSE(is_stopped(gone));
  EXPECT_FALSE(is_frozen(gone));
  EXPECT_FALSE(processor_time(gone));
  EXPECT_EQ(private_bytes(gone), 0);
}

/// Takes 32 MiB once.
void hold_memory() {
  static const std::string bytes(size_t{32} << 20, 'x');
  ::pause();
}

TEST(ProcessState, PrivateMemoryIsWhatNoFileHolds) {
  const ChildProcess small(sleep_on), large(hold_memory);
  EXPECT_TRUE(eventually([&] {
    return private_bytes(large.pid()) >= private_bytes(small.pid()) + (int64_t{32} << 20);
  }));
  EXPECT_GT(private_bytes(small.pid()), 0);
}

}  // namespace
}  // namespace shoal
