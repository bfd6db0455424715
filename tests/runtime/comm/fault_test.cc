// What the other ranks see when one of them is killed, stopped, gone or in another collective: an error that names it.
#include <gtest/gtest.h>
#include <signal.h>
#include <string>
#include <vector>

#include "tests/conformance/rank_group.h"
#include "tests/conformance/tree_cases.h"

namespace shoal {
namespace {

constexpr int kWorldSize = 3;
constexpr int kLost = 2;
constexpr int kShortMs = 400;
constexpr int kLongMs = 60'000;  // longer than the test may take: only an error at once ends it

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

AssertionResult says(const RankEnd& end, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (end.report.find(part) == std::string::npos) {
      return AssertionFailure() << "'" << part << "' is missing from '" << end.report << "', signal " << end.signal;
    }
  }
  return AssertionSuccess();
}

/// Ten sums, then the lost rank gets the signal, between two collectives; the others report their first error.
std::vector<RankEnd> lose_a_rank(const GroupOptions& options, int signal, size_t count) {
  const TreeCase tree = make_tree_case(16, 16, options.world_size, count, 1);
  return run_ranks(options,
                   [&](Communicator& communicator) {
                     std::vector<float> out(tree.count);
                     const int rank = communicator.world().rank;
                     Status status;
                     for (int round = 0; round < 20 && status.ok(); ++round) {
                       if (round == 10 && rank == kLost) ::raise(signal);
                       status = communicator.all_reduce(tree.plan, tree.own[rank].data(), out.data(), tree.count);
                     }
                     const Status again = communicator.barrier();
                     return status.to_string() + (again.ok() ? " and works again" : "");
                   },
                   {kLost});
}

class LostRankTest : public testing::TestWithParam<size_t> {};

TEST_P(LostRankTest, ShmKilledPeerIsNamedAtTheDeadline) {
  const auto ends = lose_a_rank({Transport::kShm, RankKind::kProcesses, kWorldSize, kShortMs}, SIGKILL, GetParam());
  EXPECT_EQ(ends[kLost].signal, SIGKILL);
  for (const int rank : {0, 1}) {
    // The first of the two to give up may close its end before the other's own deadline.
    const bool first = ends[rank].report.find("DEADLINE_EXCEEDED") == 0;
    EXPECT_TRUE(first ? says(ends[rank], {"all_reduce", "waited 400 ms for rank 2"})
                      : says(ends[rank], {"UNAVAILABLE", "has closed its end"}));
    EXPECT_EQ(ends[rank].report.find("works again"), std::string::npos);
  }
  EXPECT_TRUE(ends[0].report.find("rank 2") != std::string::npos || ends[1].report.find("rank 2") != std::string::npos);
}

TEST_P(LostRankTest, TcpKilledPeerIsNamedAtOnce) {
  const auto ends = lose_a_rank({Transport::kTcp, RankKind::kProcesses, kWorldSize, kLongMs}, SIGKILL, GetParam());
  EXPECT_EQ(ends[kLost].signal, SIGKILL);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(says(ends[rank], {"UNAVAILABLE", "all_reduce", "has closed its connection"}));
    EXPECT_EQ(ends[rank].report.find("works again"), std::string::npos);
  }
  EXPECT_TRUE(ends[0].report.find("rank 2") != std::string::npos || ends[1].report.find("rank 2") != std::string::npos);
}

TEST_P(LostRankTest, StoppedPeerIsNamedAtTheDeadline) {
  for (const Transport transport : {Transport::kShm, Transport::kTcp}) {
    const auto ends = lose_a_rank({transport, RankKind::kProcesses, kWorldSize, kShortMs}, SIGSTOP, GetParam());
    EXPECT_EQ(ends[kLost].signal, SIGKILL) << "it was stopped until the end";
    int named = 0;
    for (const int rank : {0, 1}) {
      const bool deadline = ends[rank].report.find("DEADLINE_EXCEEDED") == 0;
      EXPECT_TRUE(deadline || ends[rank].report.find("UNAVAILABLE") == 0) << ends[rank].report;
      named += deadline && says(ends[rank], {"waited 400 ms for", "rank 2"}) ? 1 : 0;
    }
    EXPECT_GE(named, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(SmallAndLarge, LostRankTest, testing::Values(64, 1 << 18));

class LeavingTest : public testing::TestWithParam<std::tuple<Transport, RankKind>> {};

// A rank that has its last result may go, whatever the others still have to read.
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
  const auto ends = run_ranks({transport, kind, 2, kLongMs}, [](Communicator& communicator) {
    const Status first = communicator.barrier();
    if (!first.ok() || communicator.world().rank == 1) return first.to_string();
    return communicator.barrier().to_string();
  });
  EXPECT_TRUE(says(ends[0], {"UNAVAILABLE", "barrier", "rank 1 has closed"}));
  EXPECT_EQ(ends[1].report, "OK");
}

// Ranks in different collectives would exchange nonsense.
TEST_P(LeavingTest, DifferentCollectivesAreAnError) {
  const auto [transport, kind] = GetParam();
  const auto ends = run_ranks({transport, kind, 2, kLongMs}, [](Communicator& communicator) {
    const std::vector<std::byte> mine(24);
    std::vector<std::byte> out(48);
    if (communicator.world().rank == 1) return communicator.barrier().to_string();
    return communicator.gather(0, mine, std::vector<size_t>{24, 24}, out.data()).to_string();
  });
  EXPECT_TRUE(says(ends[0], {"INTERNAL", "this rank is in gather", "rank 1 in barrier"}));
  EXPECT_NE(ends[1].report, "OK");
}

INSTANTIATE_TEST_SUITE_P(All, LeavingTest,
                         testing::Combine(testing::Values(Transport::kShm, Transport::kTcp),
                                          testing::Values(RankKind::kThreads, RankKind::kProcesses)));

}  // namespace
}  // namespace shoal
