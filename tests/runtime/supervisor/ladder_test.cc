// The ladder over real ranks and real rungs: this program is its own worker. The facts are
// invented, but the ranks are real.
#include "runtime/supervisor/ladder.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/control/channel.h"
#include "runtime/control/descriptors.h"
#include "runtime/control/messages.h"
#include "runtime/supervisor/trial.h"
#include "runtime/transport/facts/stale_segments.h"
#include "runtime/transport/rungs/nccl_rungs.h"
#include "runtime/worker/worker_main.h"
#include "tests/forbid_calls.h"
#include "tests/guard.h"
#include "tests/in_child.h"
#include "tests/moved_clock.h"
#include "tests/runtime/supervisor/ladder_settings.h"

namespace shoal {
namespace {

TEST(Ladder, EveryRungStartsAndIsProven) {
  for (const std::string& rung : every_rung()) {
    for (const int ranks : {2, 3}) {
      Ladder ladder(in_order({rung}), good_facts(), ranks);
      const auto group = ladder.start(transport_only(ranks), {});
      ASSERT_TRUE(group.ok()) << rung << ": " << group.status().to_string();
      EXPECT_EQ(ladder.report().rung, rung);
      EXPECT_FALSE(ladder.report().degraded());
      EXPECT_GT(ladder.report().self_test.latency_us, 0);
    }
  }
}

TEST(Ladder, AShortageStepsDownWithItsNumbers) {
  const HostFacts place = good_facts();
  const int64_t need = find_rung("shm")->need({2, place}).dev_shm_bytes();
  LadderOptions options = in_order({"shm", "tcp"});
  options.left_out = {"memfd"};
  Ladder ladder(std::move(options), facts_with_free(need - place.page_bytes), 2);
  const auto group = ladder.start(transport_only(2), {});
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  const TransportReport& report = ladder.report();
  EXPECT_EQ(report.rung, "tcp");
  ASSERT_EQ(report.refusals.size(), 1u);
  EXPECT_EQ(report.refusals[0].rung, "shm");
  EXPECT_EQ(report.refusals[0].phase, Phase::kBudget);
  EXPECT_TRUE(report.refusals[0].shared_memory());
  EXPECT_NE(report.refusals[0].status.to_string().find(std::to_string(need)), std::string::npos);
  EXPECT_FALSE(report.remedies.empty());
  EXPECT_EQ(report.may_work, "memfd") << "over tcp ranks are slower";

  Ladder enough(in_order({"shm", "tcp"}), facts_with_free(need), 2);
  ASSERT_TRUE(enough.start(transport_only(2), {}).ok());
  EXPECT_EQ(enough.report().rung, "shm");
}

TEST(Ladder, PolicyForbidsToGoOn) {
  const auto refused = [](LadderOptions options) {
    Ladder ladder(std::move(options), facts_with_free(4096), 2);
    const auto group = ladder.start(transport_only(2), {});
    EXPECT_FALSE(group.ok());
    EXPECT_TRUE(ladder.report().rung.empty());
    return group.status();
  };
  LadderOptions options = in_order({"shm", "tcp"});
  options.degrade_on_shm_shortage = false;
  options.names = {"--on-shm-shortage=fail", "--min-transport", "", "", ""};
  const Status fail = refused(options);
  EXPECT_EQ(fail.code(), Code::kUnavailable);
  EXPECT_NE(fail.to_string().find("shm does not fit into /dev/shm for 2 ranks, and the policy "
                                  "(--on-shm-shortage=fail) allows nothing else"),
            std::string::npos)
      << fail.to_string();
  options = in_order({"shm", "tcp"});
  options.min_transport = "shm";
  options.names = {"--on-shm-shortage=fail", "--min-transport", "", "", ""};
  const Status least = refused(options);
  EXPECT_NE(least.to_string().find("--min-transport shm"), std::string::npos) << least.to_string();
}

/// What is told of the refusals over shm, memfd and tcp where there is no room for shm.
std::string told_of_refusals(int memfd_error) {
  std::string told;
  LadderOptions options = in_order({"shm", "memfd", "tcp"});
  options.on_refused = append_to(&told);
  HostFacts facts = facts_with_free(4096);
  facts.memfd_error = memfd_error;
  EXPECT_TRUE(Ladder(options, facts, 2).start(transport_only(2), {}).ok());
  return told;
}

TEST(Ladder, ARefusalIsOnlyNotedIfTheNextRungIsAsGoodAndWorks) {
  EXPECT_EQ(told_of_refusals(0), " shm=memfd");
  EXPECT_EQ(told_of_refusals(EPERM), " shm=memfd shm>memfd memfd>tcp");
}

TEST(Ladder, TellsItsPhasesAndTheProofBeforeTheStartEnds) {
  std::vector<std::string> told;
  LadderOptions options = in_order({"shm", "memfd"});
  options.on_refused = [&](auto&&...) { told.push_back("refused"); };
  options.on_phase = [&](Phase phase, double seconds, const std::string& rung) {
    EXPECT_GE(seconds, 0);
    told.push_back(cat(phase_name(phase), " ", rung));
  };
  options.on_verified = [&](const TransportReport& report) {
    EXPECT_GT(report.self_test.latency_us, 0);
    EXPECT_GT(report.self_test.seconds, 0);
    told.push_back(cat("verified ", report.rung, ", ", verdict_name(report.verdict())));
  };
  Ladder ladder(options, facts_with_free(4096), 2);
  const auto group = ladder.start(transport_only(2), {});
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_EQ(told, (std::vector<std::string>{"refused", "probe memfd", "spawn memfd", "open memfd",
                                            "self-test memfd", "verified memfd, as-good"}));
  // It is the time of the verification, not of the start.
  EXPECT_EQ(ladder.report().self_test.seconds, (*group)->verified().seconds);
}

TEST(Ladder, AMissingPermissionIsNoWantOfMemory) {
  HostFacts facts = good_facts();
  facts.cma.tried = true;
  facts.cma.error = EPERM;
  facts.cma.yama_scope = 1;
  LadderOptions options = in_order({"cma", "tcp"});
  options.degrade_on_shm_shortage = false;
  Ladder ladder(options, facts, 2);
  const auto group = ladder.start(transport_only(2), {});
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_EQ(ladder.report().rung, "tcp");
  EXPECT_EQ(ladder.report().refusals[0].phase, Phase::kProbe);
  EXPECT_FALSE(ladder.report().refusals[0].shared_memory());
  EXPECT_FALSE(ladder.report().remedies.empty()) << "it is curable all the same";
}

// The trial is a real process and the signal is real. Only the limit is invented.
TEST(Ladder, ATrialKilledAtTheMemoryLimitIsWantOfMemoryOnEveryRung) {
  for (const char* rung : {"shm", "host-memfd"}) {
    HostFacts facts = facts_with_gpus();
    facts.cgroup.version = 2;
    facts.cgroup.levels.push_back({"/test", int64_t{64} << 20});
    ::setenv("SHOAL_TEST_KILL_TRIAL", "1", 1);
    Ladder ladder(in_order({rung, "tcp"}), facts, 2);
    const auto group = ladder.start(transport_only(2), {});
    ::unsetenv("SHOAL_TEST_KILL_TRIAL");
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    const Refusal refusal = ladder.report().refusals.at(0);
    EXPECT_EQ(refusal.phase, Phase::kReserve) << rung;
    EXPECT_TRUE(refusal.shared_memory()) << rung;
    EXPECT_NE(refusal.status.to_string().find("killed by signal 9"), std::string::npos)
        << refusal.status.to_string();
  }
}

Failure in_a_step(Fault fault) {
  return {Status::error(Code::kDataLoss, "wrong bits"), Phase::kStep, 1, fault};
}

TEST(Ladder, ARungRefusedWhileServingIsLeft) {
  Ladder ladder(in_order({"shm", "tcp"}), good_facts(), 2);
  ASSERT_TRUE(ladder.start(transport_only(2), {}).ok());
  EXPECT_FALSE(ladder.refuse_current(in_a_step(Fault::kTransport)));
  ASSERT_TRUE(ladder.start(transport_only(2), {}).ok());
  EXPECT_EQ(ladder.report().rung, "tcp");
  EXPECT_EQ(ladder.report().refusals[0].phase, Phase::kStep);
  EXPECT_FALSE(ladder.refuse_current(in_a_step(Fault::kTransport)));
  ASSERT_TRUE(ladder.start(transport_only(2), {}).ok()) << "the last one is not given up";
  EXPECT_EQ(ladder.report().rung, "tcp");
}

TEST(Ladder, ThePolicyHoldsWhileServingToo) {
  const Failure full = in_a_step(Fault::kSharedMemory);
  LadderOptions options = in_order({"nccl-shm", "tcp"});
  EXPECT_FALSE(Ladder(options, facts_with_gpus(), 2).refuse_current(full));
  options.degrade_on_shm_shortage = false;
  options.names.shm_shortage = "--on-shm-shortage=fail";
  Ladder ladder(options, facts_with_gpus(), 2);
  const std::optional<Failure> refused = ladder.refuse_current(full);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->fault, Fault::kPolicy);
  EXPECT_EQ(refused->why.code(), Code::kUnavailable);
  EXPECT_NE(refused->why.to_string().find("--on-shm-shortage=fail"), std::string::npos)
      << refused->why.to_string();
  EXPECT_TRUE(ladder.report().rung.empty());
  EXPECT_FALSE(Ladder(options, facts_with_gpus(), 2).refuse_current(in_a_step(Fault::kTransport)))
      << "memory was not short";
}

/// Checks that a rung of NCCL starts its ranks even if no memfd can be made, and that it warns
/// about the missing log only if `warned`. Returns "" if so.
std::string without_memfds(const NcclUserSettings& user, bool warned) {
  return in_child([&]() -> std::string {
    if (!forbid({SYS_memfd_create}, SECCOMP_RET_ERRNO | EPERM)) return "skip: no seccomp";
    HostFacts facts = facts_with_gpus();
    facts.gpu.nccl_version = 22809;
    LadderOptions options = in_order({"nccl-shm", "tcp"});
    options.nccl = user;
    Ladder ladder(options, facts, 2);
    testing::internal::CaptureStderr();
    const auto group = ladder.start(transport_only(2), {});
    const std::string said = testing::internal::GetCapturedStderr();
    if (!group.ok()) return group.status().to_string();
    const Refusal refusal = ladder.report().refusals.at(0);
    if (refusal.phase != Phase::kOpen)
      return cat(phase_name(refusal.phase), ": ", refusal.status.to_string());
    const NcclUse use = ladder.report().nccl.at(0);
    if (!use.tried || use.logged) return "the report has a log";
    const bool told = said.find("log is not kept") != std::string::npos;
    const bool plain = said.find("not kept: RESOURCE_EXHAUSTED") == std::string::npos;
    return told == warned && plain ? "" : said;
  });
}

// There is no GPU, so the ranks get only as far as opening their device. The log has been set up
// before that.
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
  ASSERT_TRUE(ladder.start(transport_only(1), {}).ok());
  EXPECT_EQ(ladder.report().rung, kNoTransport);
}

int64_t free_bytes(const char* directory) {
  struct statvfs mount = {};
  return ::statvfs(directory, &mount) == 0 ? static_cast<int64_t>(mount.f_bavail * mount.f_frsize)
                                           : -1;
}

/// Starts twice in a mount of 2 MiB, of which others take all that is left between the two starts.
/// Then the rung is left. Returns "" or what is wrong.
std::string starts_in_a_place_that_fills(const char* directory) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", directory, "tmpfs", 0, "size=2m") != 0)
    return "skip: no mount of its own";
  HostFacts facts = facts_with_free(int64_t{2} << 20);
  facts.dev_shm.path = directory;
  Ladder ladder(in_order({"shm", "tcp"}), facts, 2);
  auto group = ladder.start(transport_only(2), {});
  if (!group.ok() || ladder.report().rung != "shm") return cat("first: ", summary(ladder.report()));
  group = Failure{Status::error(Code::kAborted, "ended")};
  const Fd others(::open(cat(directory, "/others").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (::posix_fallocate(others.get(), 0, free_bytes(directory)) != 0) return "no file of others";
  group = ladder.start(transport_only(2), {});
  const TransportReport report = ladder.report();
  if (!group.ok() || report.rung != "shm") return cat("second: ", summary(report));
  if (report.facts.dev_shm.free_bytes != 0) return cat("free: ", report.facts.dev_shm.free_bytes);
  group = Failure{Status::error(Code::kAborted, "ended")};
  (void)ladder.refuse_current(in_a_step(Fault::kTransport));
  const int64_t need = find_rung("shm")->need({2, good_facts()}).dev_shm_bytes();
  return free_bytes(directory) == need ? "" : cat("free: ", free_bytes(directory), " of ", need);
}

TEST(Ladder, OthersCannotTakeThePoolBetweenTwoStarts) {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / cat("shoal-ladder-", ::getpid());
  std::filesystem::create_directory(directory);
  const std::string told =
      in_child([&] { return starts_in_a_place_that_fills(directory.c_str()); });
  std::filesystem::remove(directory);
  if (told.starts_with("skip")) GTEST_SKIP() << told;
  EXPECT_EQ(told, "");
}

void set_file_size_limit(rlim_t bytes) {
  const struct rlimit limit { bytes, RLIM_INFINITY };
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

/// Starts over the order, and once more under a file size limit that allows no pool, so that the
/// kept one cannot be cleared either. Returns the rung of that start, or its failure, and the
/// refusals that the report and the hook have. Without the limit a third start must work.
std::string second_start_without_files(std::vector<std::string> order) {
  ::signal(SIGXFSZ, SIG_IGN);
  std::string told;
  LadderOptions options = in_order(std::move(order));
  options.on_refused = append_to(&told);
  Ladder ladder(options, good_facts(), 2);
  Attempt<std::unique_ptr<WorkerGroup>> group = ladder.start(transport_only(2), {});
  if (!group.ok()) return group.status().to_string();
  group = Failure{Status::error(Code::kAborted, "ended")};
  set_file_size_limit(4096);
  group = ladder.start(transport_only(2), {});
  std::string outcome = group.ok() ? ladder.report().rung : code_name(group.status().code());
  if (!group.ok() && group.failure().fault == Fault::kShortage) outcome += " shortage";
  outcome += cat(" ", ladder.report().refusals.size(), told);
  group = Failure{Status::error(Code::kAborted, "ended")};
  set_file_size_limit(RLIM_INFINITY);
  group = ladder.start(transport_only(2), {});
  return cat(outcome, "; ", group.ok() ? ladder.report().rung : group.status().to_string());
}

TEST(Ladder, AShortageAfterTheFirstStartLeavesTheRungOnlyForOneThatWorks) {
  EXPECT_EQ(in_child([] {
              return second_start_without_files({"memfd", "tcp"});
            }),
            "tcp 1 memfd>tcp; tcp");
  EXPECT_EQ(in_child([] { return second_start_without_files({"memfd"}); }),
            "RESOURCE_EXHAUSTED shortage 0; memfd");
  EXPECT_EQ(in_child([] {
              return second_start_without_files({"shm", "memfd"});
            }),
            "RESOURCE_EXHAUSTED shortage 0; shm");
}

/// Runs in this program's worker: a rank that hangs while it opens its transport, whichever it is.
int hang_in_open() {
  Channel channel(Fd(3));
  (void)channel.send(encode_rank_message(PhaseBegun{Phase::kOpen}), Deadline::after_ms(kGuardMs));
  for (;;) ::pause();
}

TEST(Ladder, AllRungsOfAStartShareItsTime) {
  ::setenv("SHOAL_TEST_HANG_IN_OPEN", "1", 1);
  Ladder ladder(in_order({"shm", "shm-lean", "memfd", "tcp"}), good_facts(), 2);
  WorkerGroupOptions options = transport_only(2);
  options.startup_timeout_s = kGuardSeconds;
  options.explain_ms = 0;  // a rank that hangs like this does not answer
  const MovedClock clock;
  StartControl control;
  control.deadline = Deadline::after_s(options.startup_timeout_s);
  // Each rung has a quarter of the time, which passes once its ranks are in this phase, and a
  // little more. So there is no time for all four.
  control.on_phase_now = [&](Phase phase, double) {
    if (phase == Phase::kOpen) MovedClock::advance(0.35 * options.startup_timeout_s);
  };
  const auto group = ladder.start(options, control);
  ::unsetenv("SHOAL_TEST_HANG_IN_OPEN");
  EXPECT_EQ(group.status().code(), Code::kUnavailable);
  EXPECT_NE(group.status().to_string().find("startup_timeout"), std::string::npos)
      << group.status().to_string();
  EXPECT_LT(ladder.report().refusals.size(), 4u);
  EXPECT_NE(group.status().to_string().find("in phase open"), std::string::npos)
      << group.status().to_string();
}

/// Runs in this program's worker: takes the place of a library that leaves a file when the rank is
/// killed, as NCCL does.
void leave_a_segment() {
  char name[] = "/dev/shm/nccl-XXXXXX";
  const int fd = ::mkstemp(name);
  if (fd < 0 || ::posix_fallocate(fd, 0, 8192) != 0) std::abort();
}

TEST(Ladder, WhatAKilledRanksLibraryLeftGoesByItself) {
  const size_t before = find_left_files("/dev/shm", is_known_nccl_file).size();
  ::setenv("SHOAL_TEST_LEAVE_SEGMENT", "1", 1);
  Ladder ladder(in_order({"shm"}), good_facts(), 2);
  auto group = ladder.start(transport_only(2), {});
  ::unsetenv("SHOAL_TEST_LEAVE_SEGMENT");
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_EQ(find_left_files("/dev/shm", is_known_nccl_file).size(), before + 2);
  ::kill((*group)->pids()[0], SIGKILL);
  EXPECT_TRUE((*group)->watch(Deadline::after_ms(kGuardMs)));
  EXPECT_EQ(find_left_files("/dev/shm", is_known_nccl_file).size(), before);
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
    // A rank of NCCL that is told to log but has no file for it would write a log that nobody
    // reads.
    if (std::getenv("NCCL_DEBUG_FILE") != nullptr && ::fcntl(shoal::kWorkerLogFd, F_GETFD) < 0)
      return 99;
    if (std::getenv("SHOAL_TEST_HANG_IN_OPEN") != nullptr) return shoal::hang_in_open();
    if (std::getenv("SHOAL_TEST_LEAVE_SEGMENT") != nullptr) shoal::leave_a_segment();
    return shoal::worker_main(3);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
