// The self-test must detect a communicator that is wrong on purpose: each kind of fault, wherever
// it happens, every time. The test links a copy of runtime/comm that commits these faults
// (planted_fault.h).
#include "runtime/comm/slots/planted_fault.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "runtime/base/cat.h"
#include "runtime/transport/self_test.h"
#include "tests/breadth.h"
#include "tests/conformance/rank_group.h"
#include "tests/conformance/tree_cases.h"

namespace shoal {
namespace {

constexpr FaultKind kKinds[] = {FaultKind::kDroppedWrite, FaultKind::kStaleRead,
                                FaultKind::kSwappedSlot};
constexpr const char* kKindNames[] = {"None", "DroppedWrite", "StaleRead", "SwappedSlot"};
// A self-test has at least this many steps, over every transport and group size.
constexpr uint32_t kFewestSteps = 120;

/// The number of runs that share the faults between them (tests/breadth.h). Each run plants at
/// least eight of them, and a narrow run not many more: a sanitizer's build looks for races and
/// need not find every fault.
int shares(int seeds) {
  return std::clamp(seeds / 8, 1, narrow_breadth() ? 8 : 3);
}

/// The rank that the report blames, or -1 if it blames no single rank.
int named_rank(const std::string& report) {
  for (const std::string lead : {"in the place of rank ", "the part of rank "}) {
    if (const size_t at = report.find(lead); at != std::string::npos)
      return std::atoi(&report[at + lead.size()]);
  }
  return -1;
}

/// Runs the self-test over a group that commits the fault. Returns "" if the fault is found and no
/// other rank is blamed.
std::string find_fault(const GroupOptions& options, const PlantedFault& fault, uint64_t seed,
                       int& named) {
  planted_fault = fault;
  const auto ends = run_ranks(options, [&](Communicator& communicator) {
    const auto figures = self_test(communicator, seed);
    return figures.ok() ? std::string() : figures.status().to_string();
  });
  planted_fault = {};
  int found = 0;
  for (const RankEnd& end : ends) {
    if (end.report.find("DATA_LOSS") != 0) continue;
    ++found;
    const int rank = named_rank(end.report);
    if (rank >= 0 && rank != fault.rank) return end.report;
    named += rank == fault.rank ? 1 : 0;
  }
  return found > 0 ? "" : cat("not found: ", all_reports(ends));
}

class PlantedFaultTest : public testing::TestWithParam<std::tuple<const char*, FaultKind>> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(std::get<0>(GetParam())); !reason.empty())
      GTEST_SKIP() << reason;
  }
  static void find(RankKind rank_kind, int world_size, int seeds) {
    int named = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int seed = 0; seed < seeds; ++seed) {
        // The first pass tries the share of this run. The second goes on with the other seeds until
        // a rank is named, because all of them together are known to name some.
        if (in_share(seed, shares(seeds)) != (pass == 0) || (pass == 1 && named > 0)) continue;
        try_seed(rank_kind, world_size, seed, named);
      }
    }
    EXPECT_GT(named, 0) << "it is never said whose part is wrong";
  }
  static void try_seed(RankKind rank_kind, int world_size, int seed, int& named) {
    const auto [transport, kind] = GetParam();
    Pattern choice(static_cast<uint64_t>(seed) * 64 + static_cast<uint64_t>(world_size));
    const PlantedFault fault{kind, static_cast<int>(choice.below(world_size)),
                             static_cast<uint32_t>(choice.below(kFewestSteps))};
    EXPECT_EQ(find_fault({transport, rank_kind, world_size}, fault, choice.next(), named), "")
        << "rank " << fault.rank << " from step " << fault.after_steps << ", seed " << seed;
  }
};

TEST_P(PlantedFaultTest, TwoThreads) {
  find(RankKind::kThreads, 2, 150);
}
TEST_P(PlantedFaultTest, ThreeThreads) {
  find(RankKind::kThreads, 3, 60);
}
TEST_P(PlantedFaultTest, FiveThreads) {
  find(RankKind::kThreads, 5, 20);
}
TEST_P(PlantedFaultTest, EightThreads) {
  find(RankKind::kThreads, 8, 8);
}
TEST_P(PlantedFaultTest, TwoProcesses) {
  find(RankKind::kProcesses, 2, 30);
}
TEST_P(PlantedFaultTest, FourProcesses) {
  find(RankKind::kProcesses, 4, 12);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedFaultTest,
                         testing::Combine(testing::ValuesIn(of_today<const char*>(
                                              {"shm", "shm-lean", "memfd", "cma", kCmaNoPage})),
                                          testing::ValuesIn(kKinds)),
                         [](const auto& setting) {
                           return test_name(std::get<0>(setting.param)) +
                                  kKindNames[static_cast<int>(std::get<1>(setting.param))];
                         });

// The same build without a planted fault must find nothing. This shows that the tests above find
// the fault itself.
TEST(NoPlantedFaultTest, NothingIsFound) {
  for (const char* transport : {"shm", "shm-lean"}) {
    EXPECT_EQ(all_reports(run_ranks({transport, RankKind::kThreads, 4},
                                    [](Communicator& communicator) {
                                      const auto figures = self_test(communicator, 3);
                                      return figures.ok() ? std::string()
                                                          : figures.status().to_string();
                                    })),
              "");
  }
}

}  // namespace
}  // namespace shoal
