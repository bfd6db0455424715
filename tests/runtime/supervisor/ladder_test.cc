// The ladder over real ranks and real rungs: this program is its own worker. Facts are made up,
// ranks are not.
#include "runtime/supervisor/ladder.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/control/channel.h"
#include "runtime/control/descriptors.h"
#include "runtime/control/wire.h"
#include "runtime/supervisor/trial.h"
#include "runtime/transport/facts/stale_segments.h"
#include "runtime/worker/worker_main.h"
#include "tests/forbid_calls.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

WorkerGroupOptions transport_only(int world_size) {
  WorkerGroupOptions options;
  options.world_size = world_size;
  options.startup_timeout_s = 60;
  options.init.transport_only = true;
  options.init.collective_timeout_ms = 20'000;
  return options;
}

/// A place where everything works.
HostFacts good_facts() {
  HostFacts facts;
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = int64_t{1} << 30;
  facts.dev_shm.total_inodes = facts.dev_shm.free_inodes = 1000;
  facts.loopback_ipv4 = true;
  return facts;
}

HostFacts facts_with_free(int64_t bytes) {
  HostFacts facts = good_facts();
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = bytes;
  return facts;
}

LadderOptions in_order(std::vector<std::string> order) {
  LadderOptions options;
  options.order = std::move(order);
  return options;
}

std::vector<std::string> every_rung() {
  std::vector<std::string> names;
  for (const Rung& rung : rungs()) names.emplace_back(rung.name);
  return names;
}

TEST(Ladder, EveryRungStartsAndIsProven) {
  for (const std::string& rung : every_rung()) {
    for (const int ranks : {2, 3}) {
      Ladder ladder(in_order({rung}), good_facts(), ranks);
      GroupFailure failure;
      const auto group = ladder.start(transport_only(ranks), &failure);
      ASSERT_TRUE(group.ok()) << rung << ": " << group.status().to_string();
      EXPECT_EQ(ladder.report().rung, rung);
      EXPECT_FALSE(ladder.report().degraded());
      EXPECT_GT(ladder.report().latency_us, 0);
    }
  }
}

TEST(Ladder, AShortageStepsDownWithItsNumbers) {
  const int64_t need = find_rung("shm")->need(2).dev_shm_bytes();
  Ladder ladder(in_order({"shm", "tcp"}), facts_with_free(need - 4096), 2);
  GroupFailure failure;
  const auto group = ladder.start(transport_only(2), &failure);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  const TransportReport& report = ladder.report();
  EXPECT_EQ(report.rung, "tcp");
  ASSERT_EQ(report.refusals.size(), 1u);
  EXPECT_EQ(report.refusals[0].rung, "shm");
  EXPECT_EQ(report.refusals[0].phase, "budget");
  EXPECT_TRUE(report.refusals[0].shared_memory);
  EXPECT_NE(report.refusals[0].status.to_string().find(std::to_string(need)), std::string::npos);
  EXPECT_FALSE(report.remedies.empty());

  Ladder enough(in_order({"shm", "tcp"}), facts_with_free(need), 2);
  ASSERT_TRUE(enough.start(transport_only(2), &failure).ok());
  EXPECT_EQ(enough.report().rung, "shm");
}

TEST(Ladder, PolicyForbidsToGoOn) {
  const auto refused = [](LadderOptions options) {
    Ladder ladder(std::move(options), facts_with_free(4096), 2);
    GroupFailure failure;
    const auto group = ladder.start(transport_only(2), &failure);
    EXPECT_FALSE(group.ok());
    EXPECT_TRUE(ladder.report().rung.empty());
    return group.status();
  };
  LadderOptions options = in_order({"shm", "tcp"});
  options.degrade_on_shm_shortage = false;
  const Status fail = refused(options);
  EXPECT_EQ(fail.code(), Code::kUnavailable);
  EXPECT_NE(fail.to_string().find("--on-shm-shortage=fail"), std::string::npos) << fail.to_string();
  options = in_order({"shm", "tcp"});
  options.min_transport = "shm";
  const Status least = refused(options);
  EXPECT_NE(least.to_string().find("--min-transport"), std::string::npos) << least.to_string();
  const Status none = refused(in_order({"shm"}));
  EXPECT_NE(none.to_string().find("no transport works for 2 ranks (tried shm)"), std::string::npos)
      << none.to_string();
}

TEST(Ladder, AMissingPermissionIsNoWantOfMemory) {
  HostFacts facts = good_facts();
  facts.cma.tried = true;
  facts.cma.error = EPERM;
  facts.cma.yama_scope = 1;
  LadderOptions options = in_order({"cma", "tcp"});
  options.degrade_on_shm_shortage = false;
  Ladder ladder(options, facts, 2);
  GroupFailure failure;
  const auto group = ladder.start(transport_only(2), &failure);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_EQ(ladder.report().rung, "tcp");
  EXPECT_EQ(ladder.report().refusals[0].phase, "probe");
  EXPECT_FALSE(ladder.report().refusals[0].shared_memory);
  EXPECT_FALSE(ladder.report().remedies.empty()) << "it is curable all the same";
}

/// Two devices, as far as a front can see.
HostFacts facts_with_gpus() {
  HostFacts facts = good_facts();
  facts.gpu.asked = true;
  facts.gpu.ranks = 2;
  facts.gpu.cuda_runtime = facts.gpu.cuda_driver = 13000;
  facts.gpu.devices.resize(2);
  return facts;
}

// The trial is a real process and the signal is real; only the limit is made up.
TEST(Ladder, ATrialKilledAtTheMemoryLimitIsWantOfMemoryOnEveryRung) {
  for (const char* rung : {"shm", "host-memfd"}) {
    HostFacts facts = facts_with_gpus();
    facts.cgroup.version = 2;
    facts.cgroup.levels.push_back({"/test", int64_t{64} << 20});
    ::setenv("SHOAL_TEST_KILL_TRIAL", "1", 1);
    Ladder ladder(in_order({rung, "tcp"}), facts, 2);
    GroupFailure failure;
    const auto group = ladder.start(transport_only(2), &failure);
    ::unsetenv("SHOAL_TEST_KILL_TRIAL");
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    const Refusal& refusal = ladder.report().refusals.at(0);
    EXPECT_EQ(refusal.phase, "reserve") << rung;
    EXPECT_TRUE(refusal.shared_memory) << rung;
    EXPECT_NE(refusal.status.to_string().find("killed by signal 9"), std::string::npos)
        << refusal.status.to_string();
  }
}

TEST(Ladder, ARungRefusedWhileServingIsLeft) {
  Ladder ladder(in_order({"shm", "tcp"}), good_facts(), 2);
  GroupFailure failure;
  ASSERT_TRUE(ladder.start(transport_only(2), &failure).ok());
  EXPECT_TRUE(ladder.refuse_current("serving", Status::error(Code::kDataLoss, "wrong bits")).ok());
  ASSERT_TRUE(ladder.start(transport_only(2), &failure).ok());
  EXPECT_EQ(ladder.report().rung, "tcp");
  EXPECT_EQ(ladder.report().refusals[0].phase, "serving");
  EXPECT_TRUE(ladder.refuse_current("serving", Status::error(Code::kDataLoss, "wrong bits")).ok());
  ASSERT_TRUE(ladder.start(transport_only(2), &failure).ok()) << "the last one is not given up";
  EXPECT_EQ(ladder.report().rung, "tcp");
}

TEST(Ladder, ThePolicyHoldsWhileServingToo) {
  const Status full = Status::error(Code::kResourceExhausted, "No space left on device", 0,
                                    "comm/nccl_collective.cc");
  const Status wrong = Status::error(Code::kDataLoss, "wrong bits");
  LadderOptions options = in_order({"nccl-shm", "tcp"});
  EXPECT_TRUE(Ladder(options, facts_with_gpus(), 2).refuse_current("serving", full).ok());
  options.degrade_on_shm_shortage = false;
  Ladder ladder(options, facts_with_gpus(), 2);
  const Status refused = ladder.refuse_current("serving", full);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.to_string().find("--on-shm-shortage=fail"), std::string::npos)
      << refused.to_string();
  EXPECT_TRUE(ladder.report().rung.empty());
  EXPECT_TRUE(Ladder(options, facts_with_gpus(), 2).refuse_current("serving", wrong).ok())
      << "no want of memory";
}

/// "": a rung of NCCL's gets as far as its ranks where no memfd can be made, and `warned` of its
/// log.
std::string without_memfds(const NcclUserSettings& user, bool warned) {
  return in_child([&]() -> std::string {
    if (!forbid({SYS_memfd_create}, SECCOMP_RET_ERRNO | EPERM)) return "skip: no seccomp";
    HostFacts facts = facts_with_gpus();
    facts.gpu.nccl_version = 22809;
    LadderOptions options = in_order({"nccl-shm", "tcp"});
    options.nccl = user;
    Ladder ladder(options, facts, 2);
    GroupFailure failure;
    testing::internal::CaptureStderr();
    const auto group = ladder.start(transport_only(2), &failure);
    const std::string said = testing::internal::GetCapturedStderr();
    if (!group.ok()) return group.status().to_string();
    const Refusal& refusal = ladder.report().refusals.at(0);
    if (refusal.phase != "open") return cat(refusal.phase, ": ", refusal.status.to_string());
    const NcclUse& use = ladder.report().nccl.at(0);
    if (!use.tried || use.logged) return "the report has a log";
    return (said.find("log is not kept") != std::string::npos) == warned ? "" : said;
  });
}

// There is no GPU, so the ranks get no further than to open their device: the log is asked for
// before.
TEST(Ladder, WithoutMemoryForItsLogNcclIsTriedAllTheSame) {
  const std::string told = without_memfds({}, true);
  if (told.starts_with("skip")) GTEST_SKIP() << told;
  EXPECT_EQ(told, "");
  NcclUserSettings own;
  own.list = {{"NCCL_DEBUG", "WARN", "the environment"}};
  EXPECT_EQ(without_memfds(own, false), "") << "the user keeps it";
}

TEST(Ladder, OneRankNeedsNoRung) {
  Ladder ladder(in_order({"shm"}), facts_with_free(0), 1);
  GroupFailure failure;
  ASSERT_TRUE(ladder.start(transport_only(1), &failure).ok());
  EXPECT_EQ(ladder.report().rung, kNoTransport);
}

/// "" or what is wrong: a mount of 2 MiB has room for the pool at the first start, and none at the
/// second.
std::string second_start_in_a_fuller_place(const char* directory) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", directory, "tmpfs", 0, "size=2m") != 0)
    return "skip: no mount of its own";
  HostFacts facts = facts_with_free(int64_t{2} << 20);
  facts.dev_shm.path = directory;
  Ladder ladder(in_order({"shm", "tcp"}), facts, 2);
  GroupFailure failure;
  auto group = ladder.start(transport_only(2), &failure);
  if (!group.ok() || ladder.report().rung != "shm") return cat("first: ", summary(ladder.report()));
  group = Status::error(Code::kAborted, "ended");
  const Fd others(::open(cat(directory, "/others").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (::posix_fallocate(others.get(), 0, 3 << 19) != 0) return "no file of others";
  group = ladder.start(transport_only(2), &failure);
  const TransportReport& report = ladder.report();
  if (!group.ok() || report.rung != "tcp") return cat("second: ", summary(report));
  if (report.refusals[0].phase != "budget") return cat("it was not arithmetic: ", summary(report));
  if (report.facts.dev_shm.free_bytes != 1 << 19)
    return cat("free: ", report.facts.dev_shm.free_bytes);
  return report.remedies.empty() ? "no remedy" : "";
}

TEST(Ladder, ALaterStartGoesByWhatIsFreeThen) {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / cat("shoal-ladder-", ::getpid());
  std::filesystem::create_directory(directory);
  const std::string told =
      in_child([&] { return second_start_in_a_fuller_place(directory.c_str()); });
  std::filesystem::remove(directory);
  if (told.starts_with("skip")) GTEST_SKIP() << told;
  EXPECT_EQ(told, "");
}

/// A rank that hangs in opening its transport, whichever it is: this program's worker.
int hang_in_open() {
  Channel channel(Fd(3));
  (void)channel.send(encode(WorkerMessage(PhaseBegun{WorkerPhase::kOpen})), Deadline::after_s(10));
  for (;;) ::pause();
}

TEST(Ladder, AllRungsOfAStartShareItsTime) {
  ::setenv("SHOAL_TEST_HANG_IN_OPEN", "1", 1);
  Ladder ladder(in_order({"shm", "shm-lean", "memfd", "tcp"}), good_facts(), 2);
  WorkerGroupOptions options = transport_only(2);
  options.startup_timeout_s =
      2;  // half a second each: with what it takes to ask and to kill, four are too many
  GroupFailure failure;
  const auto group = ladder.start(options, &failure);
  ::unsetenv("SHOAL_TEST_HANG_IN_OPEN");
  EXPECT_EQ(group.status().code(), Code::kUnavailable);
  EXPECT_NE(group.status().to_string().find("--startup-timeout"), std::string::npos)
      << group.status().to_string();
  EXPECT_LT(ladder.report().refusals.size(), 4u);
  EXPECT_NE(group.status().to_string().find("in phase open"), std::string::npos)
      << group.status().to_string();
}

/// A library in the ranks that leaves a file when it is killed, as NCCL does: a fake, made by this
/// program's worker.
void leave_a_segment() {
  char name[] = "/dev/shm/nccl-XXXXXX";
  const int fd = ::mkstemp(name);
  if (fd < 0 || ::posix_fallocate(fd, 0, 8192) != 0) std::abort();
}

TEST(Ladder, WhatAKilledRanksLibraryLeftGoesByItself) {
  const size_t before = find_left_files("/dev/shm").size();
  ::setenv("SHOAL_TEST_LEAVE_SEGMENT", "1", 1);
  Ladder ladder(in_order({"shm"}), good_facts(), 2);
  GroupFailure failure;
  auto group = ladder.start(transport_only(2), &failure);
  ::unsetenv("SHOAL_TEST_LEAVE_SEGMENT");
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_EQ(find_left_files("/dev/shm").size(), before + 2);
  ::kill((*group)->pids()[0], SIGKILL);
  EXPECT_FALSE((*group)->watch(Deadline::after_s(10)).ok());
  EXPECT_EQ(find_left_files("/dev/shm").size(), before);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "reserve-trial") {
    if (std::getenv("SHOAL_TEST_KILL_TRIAL") != nullptr)
      ::raise(SIGKILL);  // as the kernel's out-of-memory killer does
    return shoal::reserve_trial_main(argv[2], argv[3]);
  }
  if (argc > 1 && std::string(argv[1]) == "worker") {
    // A rank of NCCL's without a log to write to, and yet told to: nobody would ever read it.
    if (std::getenv("NCCL_DEBUG_FILE") != nullptr && ::fcntl(shoal::kWorkerLogFd, F_GETFD) < 0)
      return 99;
    if (std::getenv("SHOAL_TEST_HANG_IN_OPEN") != nullptr) return shoal::hang_in_open();
    if (std::getenv("SHOAL_TEST_LEAVE_SEGMENT") != nullptr) shoal::leave_a_segment();
    return shoal::worker_main(3);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
