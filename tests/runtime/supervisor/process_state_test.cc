// What keeps a process from running. The processes, signals and cgroups are real.
#include "runtime/supervisor/process_state.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/deadline.h"

namespace shoal {
namespace {

class Child {
 public:
  explicit Child(void (*body)()) : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) body();
    }
  }
  ~Child() {
    if (pid_ <= 0) return;  // kill() takes 0 and -1 for many processes
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

void sleep_on() {
  ::pause();
}

/// A loop without an effect may be left out by the compiler.
void spin_on() {
  static volatile int spins = 0;
  spins = spins + 1;
}

bool eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after_s(10);
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

bool write_to(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text << std::flush;
  return out.good();
}

TEST(ProcessState, AStopIsSeen) {
  const Child child(sleep_on);
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
      const Child child(sleep_on);
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
  const Child sleeper(sleep_on), spinner(spin_on);
  EXPECT_TRUE(eventually([&] { return process_state(sleeper.pid()) == 'S'; }));
  const auto idle = processor_time(sleeper.pid()), busy = processor_time(spinner.pid());
  ASSERT_TRUE(idle && busy);
  EXPECT_TRUE(eventually(
      [&] { return *processor_time(spinner.pid()) > *busy + std::chrono::milliseconds(20); }));
  // What it took to fall asleep may be added a moment later.
  EXPECT_LT(*processor_time(sleeper.pid()) - *idle, std::chrono::milliseconds(5));
}

TEST(ProcessState, OfAProcessThatIsGoneNothingIsKnown) {
  pid_t gone = 0;
  {
    const Child child(sleep_on);
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
  const Child small(sleep_on), large(hold_memory);
  EXPECT_TRUE(eventually([&] {
    return private_bytes(large.pid()) >= private_bytes(small.pid()) + (int64_t{32} << 20);
  }));
  EXPECT_GT(private_bytes(small.pid()), 0);
}

}  // namespace
}  // namespace shoal
