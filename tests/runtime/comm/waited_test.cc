// The time that a rank waits for others, by a clock that the test moves: every communicator counts
// it, and from what the ranks have counted follows who makes the others wait.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <new>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/transport/group_waits.h"
#include "tests/conformance/rank_group.h"
#include "tests/conformance/tree_cases.h"
#include "tests/guard.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

constexpr int kRanks = 3;
constexpr int kLate = 2;
constexpr double kLateBy = 0.41;  // seconds of the moved clock

/// Memory of all ranks' processes.
class SharedFlag {
 public:
  SharedFlag()
      : flag_(new (::mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<bool>(false)) {}
  ~SharedFlag() { ::munmap(flag_, sizeof *flag_); }
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;
  std::atomic<bool>& operator*() const { return *flag_; }

 private:
  std::atomic<bool>* const flag_;
};

/// In each rank's process: how often it was asked in its wait; -1 while it is not in the sum.
int asked = -1;

/// One sum, to which rank kLate comes when each of the others has waited for kLateBy by its
/// own clock. Returns what each rank has waited, in milliseconds, or "unknown".
std::vector<std::string> waited_ms(const char* transport) {
  const TreeCase tree = make_tree_case(kRanks, kRanks, kRanks, 64, 1);
  const SharedFlag first_waits, second_waits;
  GroupOptions options{transport, RankKind::kProcesses, kRanks};
  int rank_of_process = 0;
  // The time is moved in the first look of the wait, and seen by the second.
  options.interrupted = [&] {
    if (asked < 0) return Status();
    if (++asked == 1) MovedClock::advance(kLateBy);
    if (asked > 1) *(rank_of_process == 0 ? first_waits : second_waits) = true;
    return Status();
  };
  std::vector<std::string> reports;
  for (const RankEnd& end : run_ranks(options, [&](Communicator& communicator) -> std::string {
         const int rank = rank_of_process = communicator.world().rank;
         if (rank == kLate && communicator.waited() &&
             !eventually([&] { return *first_waits && *second_waits; }))
           return "the others do not wait";
         const MovedClock clock;
         const auto before = communicator.waited();
         asked = rank == kLate ? -1 : 0;
         std::vector<float> out(tree.count);
         const Status status =
             communicator.all_reduce(tree.plan, tree.own[rank].data(), out.data(), tree.count);
         asked = -1;
         if (!status.ok()) return status.to_string();
         const auto after = communicator.waited();
         if (!after) return "unknown";
         return cat(
             std::chrono::duration_cast<std::chrono::milliseconds>(*after - *before).count());
       }))
    reports.push_back(end.report);
  return reports;
}

class WaitedTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(WaitedTest, WhoComesLastMakesTheOthersWait) {
  const std::vector<std::string> waited = waited_ms(GetParam());
  ASSERT_EQ(waited, (std::vector<std::string>{"410", "410", "0"}));
  std::vector<RankWaits> ranks(kRanks);
  for (int step = 0; step < kLeastSteps; ++step) {
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      ranks[rank].add(1, 1.0, std::atof(waited[rank].c_str()) / 1e3);
  }
  EXPECT_EQ(to_text(group_waits(ranks)), "rank 2 makes the others wait 41 % of the step");
}

INSTANTIATE_TEST_SUITE_P(All, WaitedTest, testing::ValuesIn(kTransports),
                         [](const auto& setting) { return test_name(setting.param); });
INSTANTIATE_TEST_SUITE_P(Devices, WaitedTest, testing::Values("host-memfd"),
                         [](const auto& setting) { return test_name(setting.param); });

TEST(WaitedOnDevicesTest, NothingIsKnownOfDevicesThatWaitForEachOther) {
  EXPECT_EQ(waited_ms("cuda-ipc"), std::vector<std::string>(kRanks, "unknown"));
}

}  // namespace
}  // namespace shoal
