#include "runtime/transport/facts/host_facts.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/transport/facts/child_probe.h"
#include "runtime/transport/facts/cma_facts.h"
#include "runtime/transport/facts/host_facts_json.h"
#include "runtime/transport/facts/shm_dir_facts.h"
#include "runtime/transport/needs/budget.h"
#include "tests/forbid_calls.h"
#include "tests/guard.h"
#include "tests/in_child.h"
#include "tests/runtime/supervisor/held_process.h"

namespace shoal {
namespace {

#define EXPECT_IN_CHILD(...)                            \
  do {                                                  \
    const std::string said = in_child(__VA_ARGS__);     \
    if (said.starts_with("skip")) GTEST_SKIP() << said; \
    EXPECT_EQ(said, "");                                \
  } while (false)

/// For use in a child: returns the failed condition from the body. The body returns "" if all hold.
#define REQUIRE(condition) \
  if (!(condition)) return std::string(cat(__LINE__, ": ", #condition, ": ", to_json(facts)))

TEST(HostFactsTest, OfThisMachineArePlausibleAndQuick) {
  FactsRequest request;
  request.probe_bytes = 1 << 20;
  const HostFacts facts = gather_host_facts(request);
  EXPECT_FALSE(facts.kernel.empty());
  EXPECT_GE(facts.page_bytes, 4096);
  EXPECT_GT(facts.memory_total_bytes, 1 << 20);
  EXPECT_GT(facts.memory_available_bytes, 0);
  EXPECT_LE(facts.memory_available_bytes, facts.memory_total_bytes);
  EXPECT_GE(facts.numa_nodes, 1);
  EXPECT_TRUE(facts.cma.tried);
  EXPECT_EQ(facts.dev_shm.exists, std::filesystem::is_directory("/dev/shm"));
  EXPECT_EQ(facts.dev_shm.fs_type.empty(), !facts.dev_shm.exists);
  EXPECT_GT(facts.gather_ms, 0);
  EXPECT_LT(facts.gather_ms, kGuardMs) << "a probe without a deadline";
  RecordProperty("gather_ms", cat(facts.gather_ms));
  const Result<HostFacts> again = parse_host_facts(to_json(facts));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_TRUE(*again == facts) << to_json(facts);
}

TEST(HostFactsTest, WhatChangesIsReadAgainWithoutAFork) {
  EXPECT_IN_CHILD([]() -> std::string {
    HostFacts facts;
    facts.kernel = "as it was";
    facts.cma.error = EPERM;
    facts.memory_available_bytes = 1;
    facts.cgroup.levels.push_back({"/of/old", 1});
    facts.dev_shm.path = "/tmp";
    facts.dev_shm.probe_errno = ENOSPC;
    if (!forbid({SYS_clone, SYS_clone3}, SECCOMP_RET_KILL_PROCESS)) return "skip: no seccomp";
    refresh_host_facts(&facts);
    REQUIRE(facts.kernel == "as it was" && facts.cma.error == EPERM);
    REQUIRE(facts.memory_available_bytes > 1 &&
            facts.memory_total_bytes >= facts.memory_available_bytes);
    REQUIRE(facts.cgroup.levels.empty() || facts.cgroup.levels[0].path != "/of/old");
    REQUIRE(facts.dev_shm.path == "/tmp" && facts.dev_shm.exists && !facts.dev_shm.fs_type.empty());
    REQUIRE(facts.dev_shm.probe_errno == 0);  // an earlier probe is not evidence for now
    return "";
  });
}

TEST(HostFactsTest, LeaveNoChildNoFileAndNoDescriptor) {
  const auto descriptors = [] {
    const auto all = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = descriptors();
  FactsRequest request;
  request.probe_bytes = 1 << 20;
  for (int i = 0; i < 10; ++i) (void)gather_host_facts(request);
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  if (!std::filesystem::is_directory("/dev/shm")) return;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().filename().string().find(cat("probe-", ::getpid())), std::string::npos);
  }
}

TEST(HostFactsTest, LimitsAreThisProcesss) {
  EXPECT_IN_CHILD([]() -> std::string {
    const rlimit files{48, 48}, size{65536, 65536};
    const rlimit space{1 << 30, 1 << 30}, processes{4000, 4000};
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0 || ::setrlimit(RLIMIT_FSIZE, &size) != 0 ||
        ::setrlimit(RLIMIT_AS, &space) != 0 || ::setrlimit(RLIMIT_NPROC, &processes) != 0)
      return "skip: setrlimit";
    FactsRequest request;
    request.probe_bytes = 1 << 20;  // writing this much would raise SIGXFSZ
    const HostFacts facts = gather_host_facts(request);
    REQUIRE(facts.limits.nofile == 48);
    REQUIRE(facts.limits.fsize_bytes == 65536);
    REQUIRE(facts.limits.address_space_bytes == 1 << 30);
    REQUIRE(facts.limits.nproc == (::getuid() == 0 ? -1 : 4000));
    REQUIRE(facts.pids.own_threads == 1);
    REQUIRE(facts.dev_shm.probed_bytes == 0 && !facts.dev_shm.probe_note.empty());
    return "";
  });
}

TEST(HostFactsTest, AProbeThatDoesNotDieIsLeftBehind) {
  const pid_t probe = fork_probe([] { ::pause(); });
  ASSERT_GT(probe, 0);
  HeldProcess held(probe);
  if (!held.holds()) {
    end_probe(probe);
    GTEST_SKIP() << "ptrace is forbidden here";
  }
  EXPECT_EQ(end_probe(probe), 0);
  held.release();
  int status = 0;
  EXPECT_EQ(::waitpid(probe, &status, 0), probe);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(HostFactsTest, ASeccompFilterIsFound) {
  EXPECT_IN_CHILD([]() -> std::string {
    if (!forbid({SYS_process_vm_readv, SYS_memfd_create}, SECCOMP_RET_ERRNO | EPERM))
      return "skip: no seccomp";
    const HostFacts facts = gather_host_facts({});
    REQUIRE(facts.cma.tried && facts.cma.error == EPERM && facts.cma.seccomp == 2);
    REQUIRE(facts.memfd_error == EPERM);
    return "";
  });
}

TEST(HostFactsTest, AFilterThatKillsEndsOnlyTheTry) {
  EXPECT_IN_CHILD([]() -> std::string {
    if (!forbid({SYS_process_vm_readv}, SECCOMP_RET_KILL_PROCESS)) return "skip: no seccomp";
    const HostFacts facts = gather_host_facts({});
    REQUIRE(facts.cma.tried && facts.cma.error == EPERM);
    return "";
  });
}

TEST(HostFactsTest, WhatMayNotBeTracedMayNotBeRead) {
  EXPECT_IN_CHILD([]() -> std::string {
    if (::setresuid(65534, 65534, 65534) != 0) return "skip: not root";
    ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    const HostFacts facts = gather_host_facts({});
    REQUIRE(facts.cma.error == EPERM);
    return "";
  });
}

TEST(HostFactsTest, ATryThatCouldNotBeMadeForbidsNothing) {
  const auto try_without = [](std::initializer_list<int> calls, int error) {
    return [calls = std::vector<int>(calls), error]() -> std::string {
      if (!forbid(calls, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)))
        return "skip: no seccomp";
      HostFacts facts;
      facts.cma = cma_facts({}, true);
      REQUIRE(!facts.cma.tried && facts.cma.error == 0);
      return "";
    };
  };
  EXPECT_IN_CHILD(try_without({SYS_clone, SYS_clone3}, EAGAIN));
  EXPECT_IN_CHILD(try_without({SYS_pipe2}, EMFILE));
}

TEST(HostFactsTest, ATryWithoutAnAnswerInTimeForbidsNothing) {
  EXPECT_IN_CHILD([]() -> std::string {
    // The reading process stays in this handler for ever, as it might on a machine that is too
    // busy.
    ::signal(SIGSYS, [](int) {
      for (;;) ::pause();
    });
    if (!forbid({SYS_process_vm_readv}, SECCOMP_RET_TRAP)) return "skip: no seccomp";
    HostFacts facts;
    facts.cma = cma_facts({}, true);
    REQUIRE(!facts.cma.tried && facts.cma.error == 0);
    return "";
  });
}

TEST(HostFactsTest, WithoutTheTryNothingIsForked) {
  EXPECT_IN_CHILD([]() -> std::string {
    if (!forbid({SYS_clone, SYS_clone3}, SECCOMP_RET_KILL_PROCESS)) return "skip: no seccomp";
    FactsRequest request;
    request.probe_cma = false;
    const HostFacts facts = gather_host_facts(request);
    REQUIRE(!facts.cma.tried && facts.cma.error == 0);
    return "";
  });
}

TEST(ChildProbe, AnswersDeathsAndDeadlines) {
  using End = ChildAnswer::End;
  ChildAnswer answer = ask_child([] { return 28; }, kGuardMs);
  EXPECT_TRUE(answer.end == End::kAnswered && answer.value == 28);
  answer = ask_child([] { return ::raise(SIGKILL); }, kGuardMs);
  EXPECT_TRUE(answer.end == End::kKilled && answer.value == SIGKILL);
  answer = ask_child([] { return ::pause(); }, 20);
  EXPECT_TRUE(answer.end == End::kLate);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

/// Facts of the running system, except for the memory that is left.
HostFacts facts_with_memory_left(int64_t bytes) {
  FactsRequest request;
  request.probe_cma = false;
  HostFacts facts = gather_host_facts(request);
  facts.memory_available_bytes = 0;
  facts.cgroup = {2, {{"/sys/fs/cgroup", bytes, 0, 0, false}}};
  return facts;
}

TEST(ShmProbe, NearALimitAChildTries) {
  HostFacts facts = facts_with_memory_left((1 << 20) + 4096);
  if (facts.dev_shm.open_errno != 0 || !facts.dev_shm.exists) GTEST_SKIP() << "no /dev/shm";
  probe_shm_dir(1 << 20, &facts);
  EXPECT_EQ(facts.dev_shm.probed_bytes, 1 << 20);
  EXPECT_EQ(facts.dev_shm.probe_errno, 0) << facts.dev_shm.probe_note;
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(ShmProbe, ItsDeathIsTheAnswer) {
  HostFacts facts = facts_with_memory_left((1 << 20) + 4096);
  if (facts.dev_shm.open_errno != 0 || !facts.dev_shm.exists) GTEST_SKIP() << "no /dev/shm";
  // A file size limit that the facts do not know takes the place of the memory limit: it kills too,
  // with SIGXFSZ.
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  probe_shm_dir(1 << 20, &facts);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(facts.dev_shm.probe_errno, ENOMEM);
  EXPECT_NE(facts.dev_shm.probe_note.find("killed by signal"), std::string::npos)
      << facts.dev_shm.probe_note;
  const ShmNeed need{"shm", {{"slots", 1 << 20, 1}}, {}};
  EXPECT_EQ(check_budget(need, facts, {}).code(), Code::kResourceExhausted);
}

TEST(ShmProbe, NotWhereAKillWouldTakeEverybody) {
  HostFacts facts = facts_with_memory_left((1 << 20) + 4096);
  if (facts.dev_shm.open_errno != 0 || !facts.dev_shm.exists) GTEST_SKIP() << "no /dev/shm";
  facts.cgroup.levels[0].oom_group = true;
  probe_shm_dir(1 << 20, &facts);
  EXPECT_EQ(facts.dev_shm.probed_bytes, 0);
  EXPECT_NE(facts.dev_shm.probe_note.find("oom.group"), std::string::npos);
  facts = facts_with_memory_left((1 << 20) - 1);
  probe_shm_dir(1 << 20, &facts);
  EXPECT_EQ(facts.dev_shm.probed_bytes, 0);
  EXPECT_NE(facts.dev_shm.probe_note.find("memory"), std::string::npos);
}

}  // namespace
}  // namespace shoal
