// A real trial process (this program, see main below), and a real memory cgroup if one can be made.
#include "runtime/supervisor/trial.h"

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/in_child.h"

namespace shoal {
namespace {

ShmNeed need_of(int64_t dev_shm, int64_t memory) {
  ShmNeed need;
  need.rung = "test";
  if (dev_shm > 0) need.dev_shm = {{"a pool", dev_shm, 1}};
  if (memory > 0) need.memory = {{"a memfd", memory, 0}};
  return need;
}

HostFacts limited(int64_t available) {
  HostFacts facts;
  facts.cgroup.version = 2;
  facts.cgroup.levels.push_back({});
  facts.cgroup.levels[0].path = "/test";
  facts.cgroup.levels[0].limit_bytes = available;
  return facts;
}

TEST(Trial, OnlyNearTheLimit) {
  const ShmNeed need = need_of(1 << 20, 0);
  const int64_t safe = 2 * need.memory_bytes() + kSafeDistanceBytes;
  EXPECT_FALSE(near_memory_limit(need, HostFacts(), {})) << "no limit at all";
  EXPECT_FALSE(near_memory_limit(need, limited(safe), {}));
  EXPECT_TRUE(near_memory_limit(need, limited(safe - 1), {}));
  EXPECT_TRUE(near_memory_limit(need, limited(safe + 99), {0, 100})) << "weights count";
  EXPECT_FALSE(near_memory_limit(need_of(0, 0), limited(1), {})) << "tcp needs nothing";
}

TEST(Trial, WhatCanBeHadIsGivenBack) {
  EXPECT_TRUE(try_in_disposable_process(need_of(1 << 20, 1 << 20)).ok());
  EXPECT_TRUE(try_in_disposable_process(need_of(0, 1 << 20)).ok());
}

TEST(Trial, WhatCannotIsARefusalInItsOwnWords) {
  const Status status = try_in_disposable_process(need_of(int64_t{1} << 60, 0));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.to_string().find("fallocate"), std::string::npos) << status.to_string();
  for (const char* part : {"RESOURCE_EXHAUSTED", ".cc:", "[front]"})
    EXPECT_EQ(status.message().find(part), std::string_view::npos) << status.message();
}

TEST(Trial, AnEndThatNobodyKeptProvesNothing) {
  EXPECT_EQ(in_child([]() -> std::string {
              ::signal(SIGCHLD, SIG_IGN);
              return code_name(try_in_disposable_process(need_of(1 << 20, 0)).code());
            }),
            "UNAVAILABLE");
}

/// A memory cgroup of this test with a limit. Empty if none can be made.
class LimitedCgroup {
 public:
  explicit LimitedCgroup(const std::string& limit) {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/memory"}) {
      const std::string path = cat(root, "/shoal-trial-", ::getpid());
      std::error_code error;
      if (!std::filesystem::create_directory(path, error)) continue;
      path_ = path;
      for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
        if (std::filesystem::exists(path + file) && write(path + file, limit)) {
          (void)write(path + "/memory.swap.max", "0");
          return;
        }
      }
      std::filesystem::remove(path_, error);
      path_.clear();
    }
  }
  ~LimitedCgroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  bool enter() const {
    return !path_.empty() && write(path_ + "/cgroup.procs", std::to_string(::getpid()));
  }

 private:
  static bool write(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
  }
  std::string path_;
};

TEST(Trial, ThePageBeyondTheLimitKillsTheTrialAndNobodyElse) {
  const LimitedCgroup cgroup("33554432");
  const pid_t child = ::fork();
  if (child == 0) {
    if (!cgroup.enter()) ::_exit(77);
    const Status over = try_in_disposable_process(need_of(64 << 20, 0));
    const Status under = try_in_disposable_process(need_of(4 << 20, 0));
    if (!under.ok()) ::_exit(2);
    ::_exit(over.code() == Code::kResourceExhausted ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no memory cgroup can be made here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "reserve-trial")
    return shoal::reserve_trial_main(argv[2], argv[3]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
