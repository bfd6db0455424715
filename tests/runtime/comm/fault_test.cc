// What the other ranks see if one of them is killed, stopped, gone or in another collective. They
// must get an error that names it.
#include <atomic>
#include <gtest/gtest.h>
#include <new>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "tests/conformance/rank_group.h"
#include "tests/conformance/tree_cases.h"
#include "tests/guard.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

constexpr int kWorldSize = 3;
constexpr int kLost = 2;
// A deadline that passes. The time of a rank moves only while it waits for the lost rank.
constexpr int kShortMs = 400;

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

AssertionResult says(const RankEnd& end, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (end.report.find(part) == std::string::npos) {
      return AssertionFailure() << "'" << part << "' is missing from '" << end.report
                                << "', signal " << end.signal;
    }
  }
  return AssertionSuccess();
}

/// What a rank of the group waits for, for example "all_reduce of 64 floats for 1 2".
std::string wait_text(const Communicator& communicator) {
  const WaitState state = communicator.wait_state();
  std::string text = cat("[", state.collective, ": ", state.what, " for");
  for (const int rank : state.waits_for) text += cat(" ", rank);
  return text + "]";
}

/// What the ranks of a test tell each other beside the transport, as threads or as processes.
struct Board {
  std::atomic<int> waiting = 0;  // ranks that wait for the lost one
  std::atomic<int> done = 0;     // ranks that have their result
};

class SharedBoard {
 public:
  SharedBoard()
      : board_(new (::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board) {}
  ~SharedBoard() { ::munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() const { return board_; }

 private:
  Board* const board_;
};

/// In each rank's own process or thread: it is in the collective to which another rank does not
/// come, and whether it has been seen to wait.
thread_local bool expects_a_wait = false, waits = false;

/// True if this rank is asked in a wait for the lost one, as all `ranks` others are.
bool all_wait(const SharedBoard& board, int ranks) {
  if (!expects_a_wait) return false;
  if (!std::exchange(waits, true)) ++board->waiting;
  return board->waiting >= ranks;
}

/// A rank that has its result must not leave before the others have theirs: they would notice.
void wait_for_results(const SharedBoard& board, int ranks) {
  ++board->done;
  EXPECT_TRUE(eventually([&] { return board->done >= ranks; }));
}

/// Runs ten sums. Then the lost rank gets the signal, between two collectives, and the others
/// report their first error, and whether it came long after their deadline.
std::vector<RankEnd> lose_a_rank(GroupOptions options, int signal, size_t count) {
  const TreeCase tree = make_tree_case(16, 16, options.world_size, count, 1);
  const SharedBoard board;
  options.interrupted = [&board] {
    if (all_wait(board, kWorldSize - 1)) MovedClock::advance(kShortMs / 4e3);
    return Status();
  };
  return run_ranks(options,
                   [&](Communicator& communicator) {
                     const MovedClock clock;
                     std::vector<float> out(tree.count);
                     const int rank = communicator.world().rank;
                     Status status;
                     for (int round = 0; round < 20 && status.ok(); ++round) {
                       if (round == 10 && rank == kLost) ::raise(signal);
                       expects_a_wait = round == 10;
                       status = communicator.all_reduce(tree.plan, tree.own[rank].data(),
                                                        out.data(), tree.count);
                     }
                     const bool late = seconds_since(clock.began()) > 2e-3 * kShortMs;
                     const Status again = communicator.barrier();
                     return cat(status.to_string(), wait_text(communicator), late ? " late" : "",
                                again.ok() ? " and works again" : "");
                   },
                   {kLost});
}

class LostRankTest : public testing::TestWithParam<std::tuple<const char*, size_t>> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(transport()); !reason.empty()) GTEST_SKIP() << reason;
  }
  static std::string transport() { return std::get<0>(GetParam()); }
  static size_t count() { return std::get<1>(GetParam()); }
};

/// True for transports that do not notice the death of a peer's process. With these only the
/// deadline ends the wait.
bool only_deadline(const std::string& transport) {
  return transport == "shm" || transport == "shm-lean" || transport == "memfd";
}

TEST_P(LostRankTest, KilledPeerIsNamed) {
  const int timeout_ms = only_deadline(transport()) ? kShortMs : static_cast<int>(kGuardMs);
  const auto ends =
      lose_a_rank({transport(), RankKind::kProcesses, kWorldSize, timeout_ms}, SIGKILL, count());
  EXPECT_EQ(ends[kLost].signal, SIGKILL);
  for (const int rank : {0, 1}) {
    // The first of the two ranks to give up may close its end before the other has noticed that the
    // killed rank's end is closed.
    const bool first = ends[rank].report.find("DEADLINE_EXCEEDED") == 0;
    EXPECT_TRUE(
        first ? says(ends[rank], {"all_reduce of", cat("waited ", kShortMs, " ms for rank 2")})
              : says(ends[rank], {"UNAVAILABLE", "all_reduce of", "has closed its"}));
    EXPECT_TRUE(!first || only_deadline(transport())) << ends[rank].report;
    EXPECT_EQ(ends[rank].report.find("works again"), std::string::npos);
  }
  EXPECT_TRUE(ends[0].report.find("rank 2") != std::string::npos ||
              ends[1].report.find("rank 2") != std::string::npos);
}

TEST_P(LostRankTest, StoppedPeerIsNamedAtTheDeadline) {
  const auto ends =
      lose_a_rank({transport(), RankKind::kProcesses, kWorldSize, kShortMs}, SIGSTOP, count());
  EXPECT_EQ(ends[kLost].signal, SIGKILL) << "it was stopped until the end";
  int named = 0;
  for (const int rank : {0, 1}) {
    const bool deadline = ends[rank].report.find("DEADLINE_EXCEEDED") == 0;
    EXPECT_TRUE(deadline || ends[rank].report.find("UNAVAILABLE") == 0) << ends[rank].report;
    EXPECT_EQ(ends[rank].report.find(" late"), std::string::npos) << ends[rank].report;
    if (!deadline) continue;
    EXPECT_TRUE(says(ends[rank], {cat("waited ", kShortMs, " ms for"),
                                  cat("[11: all_reduce of ", count(), " floats for ")}));
    const auto list = ends[rank].report.find(" floats for ");
    named += ends[rank].report.find(" 2", list + 11) != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(named, 1);
}

INSTANTIATE_TEST_SUITE_P(All, LostRankTest,
                         testing::Combine(testing::ValuesIn(kTransports),
                                          testing::Values(64, 1 << 18)));

class WaitTest : public testing::TestWithParam<std::tuple<const char*, RankKind>> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(std::get<0>(GetParam())); !reason.empty())
      GTEST_SKIP() << reason;
  }
};

// The front asks a rank to stop while it waits for a rank that does not come.
TEST_P(WaitTest, InterruptedEndsItSoon) {
  const auto [transport, kind] = GetParam();
  const SharedBoard board;
  GroupOptions options{transport, kind, 2};
  options.interrupted = [&board] {
    return all_wait(board, 1) ? Status::error(Code::kCancelled, "the front says stop") : Status();
  };
  const auto ends = run_ranks(options, [&board](Communicator& communicator) -> std::string {
    if (const Status status = communicator.barrier(); !status.ok()) return status.to_string();
    if (!communicator.wait_state().waits_for.empty()) return wait_text(communicator);
    if (communicator.world().rank == 1) {
      return eventually([&] { return board->done > 0; }) ? "" : "rank 0 has not ended";
    }
    expects_a_wait = true;
    const Status status = communicator.barrier();
    ++board->done;
    return cat(status.to_string(), wait_text(communicator));
  });
  EXPECT_TRUE(says(ends[0], {"CANCELLED", "the front says stop", "[2: barrier for 1]"}));
  EXPECT_EQ(ends[1].report, "");
}

thread_local const Communicator* waiting = nullptr;

// Code that runs in Interrupted can find out for which ranks this one waits.
TEST_P(WaitTest, StateIsKnownDuringTheWait) {
  const auto [transport, kind] = GetParam();
  const SharedBoard board;
  GroupOptions options{transport, kind, 3};
  options.interrupted = [&board] {
    // Rank 1 comes once rank 0 has seen that nobody else is missing.
    if (waiting != nullptr && wait_text(*waiting) == "[2: gather of 24 bytes for 1]")
      board->done = 1;
    return Status();
  };
  const auto ends = run_ranks(options, [&board](Communicator& communicator) -> std::string {
    const std::vector<size_t> sizes{8, 8, 8};
    std::vector<std::byte> mine(8);
    std::vector<std::byte> out(24);
    if (communicator.wait_state().collective != 0) return "a collective before the first";
    if (const Status status = communicator.barrier(); !status.ok()) return status.to_string();
    if (communicator.world().rank == 0) waiting = &communicator;
    if (communicator.world().rank == 1 && !eventually([&] { return board->done > 0; }))
      return "rank 0 never waited for rank 1 alone";
    if (const Status status = communicator.gather(0, mine, sizes, out.data()); !status.ok())
      return status.to_string();
    waiting = nullptr;
    return communicator.world().rank == 0 ? wait_text(communicator) : "";
  });
  EXPECT_EQ(ends[0].report, "[2: gather of 24 bytes for]");
  EXPECT_EQ(ends[1].report, "");
}

INSTANTIATE_TEST_SUITE_P(All, WaitTest,
                         testing::Combine(testing::ValuesIn(kTransports),
                                          testing::Values(RankKind::kThreads,
                                                          RankKind::kProcesses)));

class DeviceWaitTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// Runs a barrier in which all ranks meet, then a collective to which the last rank does not come.
std::string wait_for_the_lost(Communicator& communicator, const SharedBoard& board, bool sum) {
  if (const Status status = communicator.barrier(); !status.ok()) return status.to_string();
  if (communicator.world().rank == kLost) ::pause();
  const TreeCase tree = make_tree_case(16, 16, kWorldSize, 64, 1);
  std::vector<float> out(tree.count);
  const float* own = tree.own[communicator.world().rank].data();
  expects_a_wait = true;
  const Status status = sum ? communicator.all_reduce(tree.plan, own, out.data(), tree.count)
                            : communicator.barrier();
  wait_for_results(board, kWorldSize - 1);
  return cat(status.to_string(), wait_text(communicator));
}

// Over an emulated GPU, the front asks the other ranks for whom they wait. Some of them
// wait while they enqueue the work, and some for the stream. NCCL does not report which rank is
// missing, so any rank may be.
TEST_P(DeviceWaitTest, ARankThatNeverComesIsNamed) {
  // Over cuda-ipc, only the kernel knows for whom it waits, and it says so when it gives up, after
  // 2 s or more. So there the front does not ask, and the collective has its time.
  const bool asked = std::string_view(GetParam()) != "cuda-ipc";
  for (const bool sum : {false, true}) {
    const SharedBoard board;
    GroupOptions options{GetParam(), RankKind::kProcesses, kWorldSize};
    if (asked) {
      options.interrupted = [&board] {
        return all_wait(board, kWorldSize - 1) ? Status::error(Code::kCancelled, "the front asks")
                                               : Status();
      };
    } else {
      options.timeout_ms = 4'000;
    }
    const auto ends = run_ranks(
        options, [&](Communicator& c) { return wait_for_the_lost(c, board, sum); }, {kLost});
    for (const int rank : {0, 1}) {
      const std::string missing =
          options.transport == "nccl-shm" ? cat(1 - rank, " ", kLost) : cat(kLost);
      EXPECT_TRUE(
          says(ends[rank],
               {asked ? "CANCELLED" : "DEADLINE_EXCEEDED",
                cat(sum ? "[2: all_reduce of 64 floats for " : "[2: barrier for ", missing, "]")}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceWaitTest, testing::ValuesIn(kDeviceTransports),
                         [](const auto& setting) { return test_name(setting.param); });

// Through host memory, the hosts compare what they are in. The other rungs between devices only
// leave a rank waiting (e2e/device_model/planted).
TEST(DeviceOrderTest, DifferentCollectivesAreAnErrorThroughHostMemory) {
  if (const std::string reason = why_not("host-memfd"); !reason.empty()) GTEST_SKIP() << reason;
  const auto ends =
      run_ranks({"host-memfd", RankKind::kProcesses, 2}, [](Communicator& communicator) {
        const std::vector<std::byte> mine(24);
        std::vector<std::byte> out(48);
        if (communicator.world().rank == 1) return communicator.barrier().to_string();
        return communicator.gather(0, mine, std::vector<size_t>{24, 24}, out.data()).to_string();
      });
  EXPECT_TRUE(says(
      ends[0], {"INTERNAL", "this rank is in gather of 24 bytes, rank 1 in gather of 4 bytes"}));
  EXPECT_TRUE(says(
      ends[1], {"INTERNAL", "this rank is in gather of 4 bytes, rank 0 in gather of 24 bytes"}));
}

class LeavingTest : public WaitTest {};

// A rank that has its last result may leave, even if the others still have to read their data.
TEST_P(LeavingTest, RanksLeaveInAnyOrder) {
  const auto [transport, kind] = GetParam();
  const TreeCase tree = make_tree_case(16, 16, 4, 3000, 3);
  for (int round = 0; round < 20; ++round) {
    const auto ends = run_ranks({transport, kind, 4}, [&](Communicator& communicator) {
      std::vector<float> out(tree.count);
      const float* own = tree.own[communicator.world().rank].data();
      const Status status = communicator.all_reduce(tree.plan, own, out.data(), tree.count);
      return status.ok() ? std::string(out == tree.sum ? "" : "wrong sum") : status.to_string();
    });
    ASSERT_EQ(all_reports(ends), "");
  }
}

TEST_P(LeavingTest, AwaitedRankThatHasLeftIsNamedAtOnce) {
  const auto [transport, kind] = GetParam();
  const auto ends = run_ranks({transport, kind, 2}, [](Communicator& communicator) {
    const Status first = communicator.barrier();
    if (!first.ok() || communicator.world().rank == 1) return first.to_string();
    return communicator.barrier().to_string();
  });
  EXPECT_TRUE(says(ends[0], {"UNAVAILABLE", "barrier", "rank 1 has closed"}));
  EXPECT_EQ(ends[1].report, "OK");
}

// Ranks in different collectives would otherwise exchange wrong data.
TEST_P(LeavingTest, DifferentCollectivesAreAnError) {
  const auto [transport, kind] = GetParam();
  const auto ends = run_ranks({transport, kind, 2}, [](Communicator& communicator) {
    const std::vector<std::byte> mine(24);
    std::vector<std::byte> out(48);
    if (communicator.world().rank == 1) return communicator.barrier().to_string();
    return communicator.gather(0, mine, std::vector<size_t>{24, 24}, out.data()).to_string();
  });
  // Without a shared page, a rank that has noticed the mistake and left takes its control words
  // with it. A rank that checks later finds only that it is gone.
  const bool gone =
      std::string_view(transport) == "cma-no-page" && ends[0].report.starts_with("UNAVAILABLE");
  EXPECT_TRUE(gone || says(ends[0], {"INTERNAL", "this rank is in gather", "rank 1 in barrier"}));
  EXPECT_NE(ends[1].report, "OK");
}

INSTANTIATE_TEST_SUITE_P(All, LeavingTest,
                         testing::Combine(testing::ValuesIn(kTransports),
                                          testing::Values(RankKind::kThreads,
                                                          RankKind::kProcesses)));

}  // namespace
}  // namespace shoal
