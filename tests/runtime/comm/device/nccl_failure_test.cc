#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <signal.h>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/page_size.h"
#include "runtime/transport/nccl_log.h"
#include "tests/fakes/nccl_ranks.h"

namespace shoal {
namespace {

/// What a rank reports when NCCL fails. The other ranks must return too.

constexpr int64_t kMiB = int64_t{1} << 20;

std::string nothing(NcclRank&) {
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int count(const NcclEnds& ends, Code code) {
  return static_cast<int>(std::count_if(ends.ranks.begin(), ends.ranks.end(),
                                        [&](const NcclEnd& end) { return end.code == code; }));
}

#define SKIP_WITHOUT_MOUNTS(ends) \
  if (!(ends).skipped.empty()) GTEST_SKIP() << (ends).skipped

// Three ranks take 9650176 B each, but there are 16 MiB. A rank that finds no room reports the size
// and the reason, and the others report that they have waited.
TEST(NcclFailureTest, AFullDevShmIsSaidInNcclsWords) {
  NcclGroup group;
  group.world_size = 3;
  group.shm_bytes = 16 * kMiB;
  group.time_passes = TimePasses::kOnceARankHasReported;
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  SKIP_WITHOUT_MOUNTS(ends);
  EXPECT_GE(count(ends, Code::kResourceExhausted), 1);
  EXPECT_EQ(count(ends, Code::kResourceExhausted) + count(ends, Code::kDeadlineExceeded), 3)
      << all_reports(ends);
  for (const NcclEnd& end : ends.ranks) {
    EXPECT_EQ(end.fault == Fault::kSharedMemory, end.code == Code::kResourceExhausted)
        << end.report;
    EXPECT_TRUE(has(end.report, "ncclAllGather of 4 bytes")) << end.report;
    if (end.code == Code::kDeadlineExceeded) {
      EXPECT_TRUE(has(end.report, "has not ended after ")) << end.report;
    } else {
      EXPECT_TRUE(has(end.report, "NCCL 2.28.9 says unhandled system error")) << end.report;
      EXPECT_TRUE(has(end.report, "Error while creating shared memory segment /dev/shm/nccl-"))
          << end.report;
      // While two ranks reserve at once, the small segment of the third may be the one that finds
      // no room.
      EXPECT_TRUE(has(end.report, "(size 9637888), error: No space left on device (28)") ||
                  has(end.report, "(size 4096), error: No space left on device (28)"))
          << end.report;
    }
  }
}

// NCCL's peers never notice a hang, but the front does. Its request to stop must take effect long
// before the deadline. Until then each rank says where it waits.
TEST(NcclFailureTest, TheFrontsWordEndsTheOthersWait) {
  NcclGroup group;
  group.world_size = 2;
  group.environment["FAKE_NCCL_HANG"] = "collective:1";  // rank 0 spins in accept
  group.waits = [](const std::string& where) -> Status {
    if (times_told("hangs") == 0 || !has(where, "ncclAllGather")) return {};
    return Status::error(Code::kCancelled, cat("the front has said so: ", where));
  };
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  EXPECT_EQ(count(ends, Code::kCancelled), 2) << all_reports(ends);
  for (const NcclEnd& end : ends.ranks)
    EXPECT_TRUE(has(end.report, "so: ncclAllGather of 4 bytes has not ended after ")) << end.report;
}

TEST(NcclFailureTest, ADevShmThatCannotBeWrittenIsSaid) {
  NcclGroup group;
  group.shm_bytes = 64 * kMiB;
  group.shm_read_only = true;
  group.time_passes = TimePasses::kOnceARankHasReported;
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  SKIP_WITHOUT_MOUNTS(ends);
  EXPECT_GE(count(ends, Code::kPermissionDenied), 1) << all_reports(ends);
  EXPECT_TRUE(has(all_reports(ends), "Read-only file system (30)")) << all_reports(ends);
}

TEST(NcclFailureTest, AnInitThatHangsEndsAtTheDeadline) {
  for (const char* which : {"init", "init:1"}) {
    NcclGroup group;
    group.world_size = 3;
    group.time_passes = TimePasses::kOnceRanksHang;
    group.environment["FAKE_NCCL_HANG"] = which;
    group.hanging = std::string(which) == "init" ? 3 : 1;
    const NcclEnds ends = run_nccl_ranks(group, nothing);
    EXPECT_GE(count(ends, Code::kDeadlineExceeded), 2) << all_reports(ends);
    for (const NcclEnd& end : ends.ranks) {
      // On a busy machine a rank may come when rank 0 has given up.
      const bool late = has(end.report, "returned Connection refused");
      EXPECT_TRUE(late || has(end.report, "ncclCommInitRankConfig has not ended after "))
          << end.report;
    }
    EXPECT_TRUE(has(ends.ranks[1].report, "; NCCL's last error: socketFinalizeAccept: wrong magic"))
        << ends.ranks[1].report;
  }
}

void overwrite_freed_memory() {
  constexpr int kOfEachSize = 16;
  std::vector<std::string> others;
  for (size_t bytes = 16; bytes <= 4096; bytes += 16) {
    for (int i = 0; i < kOfEachSize; ++i) others.emplace_back(bytes, '\xa5');
  }
}

// NCCL's own thread continues an init that we have given up, and stores the handle when it ends.
TEST(NcclFailureTest, AnInitThatEndsAfterItsDeadlineHarmsNobody) {
  NcclGroup group;
  group.time_passes = TimePasses::kOnceRanksHang;
  group.hanging = group.world_size;  // or a rank that comes late meets one that has given up
  const std::string gone_on = cat(testing::TempDir(), "init-goes-on-", ::getpid());
  group.environment["FAKE_NCCL_HOLD_INIT"] = gone_on;
  group.after_failure = [gone_on, world = group.world_size] {
    overwrite_freed_memory();
    std::ofstream(gone_on) << "now";
    EXPECT_TRUE(eventually([world] { return times_told("the init is over") == world; }));
  };
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  std::filesystem::remove(gone_on);
  for (const NcclEnd& end : ends.ranks) {
    EXPECT_EQ(end.signal, 0);
    EXPECT_EQ(end.code, Code::kDeadlineExceeded) << end.report;
  }
}

TEST(NcclFailureTest, AFirstCollectiveThatHangsEndsAtTheDeadline) {
  NcclGroup group;
  group.time_passes = TimePasses::kOnceRanksHang;
  group.hanging = 2;
  group.environment["FAKE_NCCL_HANG"] = "collective";
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  EXPECT_EQ(count(ends, Code::kDeadlineExceeded), 2) << all_reports(ends);
  for (const NcclEnd& end : ends.ranks)
    EXPECT_TRUE(has(end.report, "ncclAllGather of 4 bytes")) << end.report;
}

TEST(NcclFailureTest, CommunicatorsThatDoNotBlockAreRefused) {
  NcclGroup group;
  group.environment["NCCL_COMM_BLOCKING"] = "0";
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  EXPECT_EQ(count(ends, Code::kFailedPrecondition), 2) << all_reports(ends);
  EXPECT_TRUE(has(ends.ranks[0].report, "NCCL_COMM_BLOCKING=0")) << all_reports(ends);
}

TEST(NcclFailureTest, VersionsThatDifferAreRefusedBeforeInit) {
  NcclGroup group;
  group.world_size = 3;
  group.of_rank[2]["FAKE_NCCL_VERSION"] = "2.27.7";
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  EXPECT_EQ(count(ends, Code::kFailedPrecondition), 3) << all_reports(ends);
  EXPECT_TRUE(has(ends.ranks[0].report, "rank 2 has NCCL 2.27.7 at ")) << ends.ranks[0].report;
  EXPECT_TRUE(has(ends.ranks[0].report, "rank 0 has 2.28.9 at ")) << ends.ranks[0].report;
}

TEST(NcclFailureTest, LibrariesThatDifferAreRefusedBeforeInit) {
  const std::string copy = cat(testing::TempDir(), "libcopied_nccl-", ::getpid(), ".so");
  std::filesystem::copy_file(SHOAL_FAKE_NCCL, copy);
  NcclGroup group;
  group.library_of[1] = copy;
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  std::filesystem::remove(copy);
  EXPECT_EQ(count(ends, Code::kFailedPrecondition), 2) << all_reports(ends);
  EXPECT_TRUE(has(ends.ranks[0].report, copy)) << ends.ranks[0].report;
}

TEST(NcclFailureTest, AnOldLibraryIsRefused) {
  NcclGroup group;
  group.world_size = 1;
  group.environment["FAKE_NCCL_VERSION"] = "2.26.2";
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  EXPECT_EQ(ends.ranks[0].code, Code::kFailedPrecondition);
  EXPECT_TRUE(has(ends.ranks[0].report, "NCCL 2.26.2 at ")) << ends.ranks[0].report;
  EXPECT_TRUE(has(ends.ranks[0].report, "an illegal memory access")) << ends.ranks[0].report;
  EXPECT_TRUE(has(ends.ranks[0].report, "2.27.5 or newer")) << ends.ranks[0].report;
}

TEST(NcclFailureTest, RanksOnOneGpuNeedHostsOfTheirOwn) {
  NcclGroup group;
  group.ranks_per_gpu = 2;
  const NcclEnds refused = run_nccl_ranks(group, nothing);
  EXPECT_EQ(count(refused, Code::kFailedPrecondition), 2) << all_reports(refused);
  EXPECT_TRUE(has(refused.ranks[0].report, "Duplicate GPU detected : rank 0 and rank 1"))
      << all_reports(refused);

  group.of_rank = {{0, {{"NCCL_HOSTID", "a"}}}, {1, {{"NCCL_HOSTID", "b"}}}};
  group.shm_bytes = 80 * kMiB;
  const NcclEnds ends = run_nccl_ranks(group, [](NcclRank& rank) -> std::string {
    rank.meet();
    const int64_t used = dev_shm_used();
    rank.meet();
    const auto pool = static_cast<int64_t>(whole_pages(34210180));
    return used == 2 * pool ? "" : cat("two pools are ", used);
  });
  SKIP_WITHOUT_MOUNTS(ends);
  EXPECT_EQ(all_reports(ends), "");
}

// Ranks that disagree about cuMem host memory mistake a handle for a file name. For this reason the
// variable is set in all ranks.
TEST(NcclFailureTest, RanksThatDisagreeOnCumemHostDoNotUnderstandEachOther) {
  NcclGroup group;
  group.of_rank[1]["FAKE_NCCL_CUMEM_HOST"] = "1";
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  EXPECT_EQ(count(ends, Code::kOk), 0) << all_reports(ends);
  EXPECT_TRUE(
      has(all_reports(ends), "Error while attaching to shared memory segment /dev/shm/nccl-"))
      << all_reports(ends);
  EXPECT_TRUE(has(all_reports(ends), "(size 0)")) << all_reports(ends);

  group.environment["NCCL_CUMEM_HOST_ENABLE"] = "0";
  EXPECT_EQ(all_reports(run_nccl_ranks(group, nothing)), "");
}

// The real library without a driver must give an error with its own text on every rank, and must
// not crash.
TEST(NcclFailureTest, TheRealLibraryWithoutADriverIsRefusedPolitely) {
#ifdef SHOAL_TEST_NCCL_LIBRARY
  if (std::filesystem::exists("/proc/driver/nvidia/version")) GTEST_SKIP() << "there is a driver";
  NcclGroup group;
  group.library_of = {{0, SHOAL_TEST_NCCL_LIBRARY}, {1, SHOAL_TEST_NCCL_LIBRARY}};
  group.environment["NCCL_SOCKET_IFNAME"] = "lo";
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  for (const NcclEnd& end : ends.ranks) {
    EXPECT_EQ(end.signal, 0);
    EXPECT_NE(end.code, Code::kOk);
    EXPECT_TRUE(has(end.report, "says unhandled cuda error")) << end.report;
  }
#else
  GTEST_SKIP() << "libnccl.so.2 is not installed here";
#endif
}

/// Runs a group whose last rank dies while the others continue.
NcclEnds with_a_death(Environment environment) {
  NcclGroup group;
  group.world_size = 3;
  group.time_passes = TimePasses::kOnceARankHasReported;
  group.environment = std::move(environment);
  return run_nccl_ranks(group, [](NcclRank& rank) -> std::string {
    rank.meet();
    if (rank.communicator.world().rank == 2) ::kill(::getpid(), SIGKILL);
    const Status status = rank.communicator.barrier();
    return status.ok() ? "no error" : status.to_string();
  });
}

TEST(NcclFailureTest, ADeathOverMemoryEndsAtTheDeadline) {
  const NcclEnds ends = with_a_death({});
  EXPECT_EQ(ends.ranks[2].signal, SIGKILL);
  for (const int rank : {0, 1})
    EXPECT_TRUE(has(ends.ranks[static_cast<size_t>(rank)].report, "DEADLINE_EXCEEDED"))
        << all_reports(ends);
}

TEST(NcclFailureTest, ADeathOverSocketsIsNoticed) {
  const NcclEnds ends = with_a_death({{"NCCL_SHM_DISABLE", "1"}});
  EXPECT_TRUE(has(ends.ranks[0].report, "UNAVAILABLE"))
      // Its predecessor in the ring is gone.
      << all_reports(ends);
  EXPECT_TRUE(has(ends.ranks[0].report, "remote process exited or there was a network error (6)"))
      << all_reports(ends);
}

// Over memory nothing tells the peer, which waits for its answer, that there will be none.
TEST(NcclFailureTest, ADeathBetweenInitAndTheFirstCollectiveEndsAtTheDeadline) {
  const std::string doomed = cat(testing::TempDir(), "dies-", ::getpid());
  std::ofstream(doomed) << 1;
  NcclGroup group;
  group.time_passes = TimePasses::kOnceARankHasReported;
  group.environment["FAKE_NCCL_DIE"] = doomed;
  const NcclEnds ends = run_nccl_ranks(group, nothing);
  EXPECT_FALSE(std::filesystem::exists(doomed));
  EXPECT_EQ(ends.ranks[1].signal, SIGKILL) << all_reports(ends);
  EXPECT_EQ(ends.ranks[0].code, Code::kDeadlineExceeded) << all_reports(ends);
  EXPECT_TRUE(has(ends.ranks[0].report, "ncclAllGather of 4 bytes has not ended after "))
      << all_reports(ends);
}

/// Runs `wrong` on every rank's own log. It returns what is wrong with the log, or "".
void expect_logs(const Environment& environment,
                 const std::function<std::string(const NcclLog&)>& wrong) {
  const std::string folder = cat(testing::TempDir(), "nccl-logs-", ::getpid());
  std::filesystem::create_directory(folder);
  NcclGroup group;
  group.world_size = 3;
  group.channels = 2;
  group.environment = environment;
  group.environment["NCCL_DEBUG"] = "INFO";
  group.environment["NCCL_DEBUG_SUBSYS"] = "INIT,BOOTSTRAP,ENV,ALLOC";
  group.environment["NCCL_DEBUG_FILE"] = folder + "/%h.%p.log";
  const NcclEnds ends = run_nccl_ranks(group, [&](NcclRank&) -> std::string {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!has(entry.path().filename(), cat(".", ::getpid(), ".log"))) continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      const std::string answer = wrong(parse_nccl_log(text.str()));
      return answer.empty() ? "" : cat(answer, "\n", text.str());
    }
    return "no log";
  });
  std::filesystem::remove_all(folder);
  EXPECT_EQ(all_reports(ends), "");
}

using Transports = std::map<std::string, int>;

TEST(NcclLogOfRanksTest, OverSharedMemory) {
  expect_logs({}, [](const NcclLog& log) {
    if (log.version != "2.28.9+cuda13.0") return cat("version ", log.version);
    if (log.transports != Transports{{"SHM/direct", 2}}) return std::string("transports");
    if (log.channels != 2 || !log.rings || log.trees)
      return cat(log.channels, " channels, or the algorithms");
    if (!log.cumem_fallback) return std::string("no word of the cuMem fallback");
    const int64_t bytes = 2 * (9637892 + 4100);
    return log.dev_shm_bytes == bytes && log.dev_shm_files == 4 ? ""
                                                                : cat(log.dev_shm_bytes, " bytes");
  });
}

TEST(NcclLogOfRanksTest, OverSockets) {
  expect_logs({{"NCCL_SHM_DISABLE", "1"}, {"NCCL_CUMEM_HOST_ENABLE", "0"}}, [](const NcclLog& log) {
    if (log.transports != Transports{{"NET/Socket", 2}} || log.cumem_fallback)
      return std::string("transports");
    return log.dev_shm_bytes == 34210180 && log.dev_shm_files == 1
               ? ""
               : cat(log.dev_shm_bytes, " bytes");
  });
}

TEST(NcclLogOfRanksTest, OverPeerMemory) {
  expect_logs({{"EMULATED_GPU_PEERS", "all"}}, [](const NcclLog& log) {
    if (log.transports != Transports{{"P2P/CUMEM", 2}}) return std::string("transports");
    return log.dev_shm_bytes == 0 ? "" : cat(log.dev_shm_bytes, " bytes");
  });
}

}  // namespace
}  // namespace shoal
