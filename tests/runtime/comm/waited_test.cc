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

namespace shoal {
namespace {

constexpr int kRanks = 3;
constexpr int kLate = 2;
constexpr int kHeldUp = 0;
constexpr double kStep = 0.1;         // seconds of the moved clock
constexpr double kLateBy = 0.041;     // likewise
constexpr double kHeldUpFor = 0.060;  // likewise

/// What all ranks' processes share: the time, and how far they have got.
struct Shared {
  std::atomic<RunningClock::duration> now;
  std::atomic<bool> waits[kRanks];
  std::atomic<bool> late_is_done;

  void advance(double seconds) {
    now = now.load() + std::chrono::duration_cast<RunningClock::duration>(
                           std::chrono::duration<double>(seconds));
  }
};

/// While it lives, RunningClock moves only when a rank says so, for all ranks alike. It must be
/// made before them.
class SharedClock {
 public:
  SharedClock() {
    shared = new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared{};
    shared->now = RunningClock::now().time_since_epoch();
    RunningClock::set_source([] { return shared->now.load(); });
  }
  ~SharedClock() {
    RunningClock::set_source(nullptr);
    ::munmap(shared, sizeof(Shared));
  }
  SharedClock(const SharedClock&) = delete;
  SharedClock& operator=(const SharedClock&) = delete;

  inline static Shared* shared = nullptr;
};

/// A rank that waits for kLate, in its own process.
class Waiter {
 public:
  Waiter(Shared& shared, bool held_up) : shared_(shared), held_up_(held_up) {}

  void enter(Communicator& communicator) { communicator_ = &communicator; }
  void leave() { communicator_ = nullptr; }

  /// Called during its wait. The third look is certainly after a sleep for kLate. If it is to be
  /// held up, it then stands still until kLate's part is there, and for kHeldUpFor longer.
  Status look() {
    if (communicator_ == nullptr) return {};
    const std::vector<int> awaited = communicator_->wait_state().waits_for;
    if (awaited != std::vector<int>{kLate} || ++looks_ != 3) return {};
    const int rank = communicator_->world().rank;
    shared_.waits[rank] = true;
    if (!held_up_ || rank != kHeldUp) return {};
    if (!eventually([&] { return shared_.late_is_done.load(); }))
      return Status::error(Code::kInternal, "nobody comes");
    shared_.advance(kHeldUpFor);
    return {};
  }

 private:
  Shared& shared_;
  const bool held_up_;
  Communicator* communicator_ = nullptr;  // while in the sum
  int looks_ = 0;
};

/// One sum, to which rank kLate comes kLateBy later than the others. Returns what each rank has
/// waited, in milliseconds, or "unknown". held_up: rank kHeldUp goes on late, when it could have
/// gone on for kHeldUpFor.
std::vector<std::string> waited_ms(const char* transport, bool held_up = false) {
  const TreeCase tree = make_tree_case(kRanks, kRanks, kRanks, 64, 1);
  const SharedClock clock;
  Shared& shared = *SharedClock::shared;
  Waiter waiter(shared, held_up);
  GroupOptions options{transport, RankKind::kProcesses, kRanks};
  options.interrupted = [&] { return waiter.look(); };
  std::vector<std::string> reports;
  for (const RankEnd& end : run_ranks(options, [&](Communicator& communicator) -> std::string {
         const int rank = communicator.world().rank;
         const auto before = communicator.waited();
         if (rank == kLate && before) {
           if (!eventually([&] { return shared.waits[0] && shared.waits[1]; }))
             return "the others do not wait";
           shared.advance(kLateBy);
         }
         std::vector<float> out(tree.count);
         waiter.enter(communicator);
         const Status status =
             communicator.all_reduce(tree.plan, tree.own[rank].data(), out.data(), tree.count);
         waiter.leave();
         if (!status.ok()) return status.to_string();
         if (rank == kLate) shared.late_is_done = true;
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
  ASSERT_EQ(waited, (std::vector<std::string>{"41", "41", "0"}));
  std::vector<RankWaits> ranks(kRanks);
  for (int step = 0; step < kLeastSteps; ++step) {
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      ranks[rank].add(1, kStep, std::atof(waited[rank].c_str()) / 1e3);
  }
  EXPECT_EQ(to_text(group_waits(ranks)), "rank 2 makes the others wait 41 % of the step");
}

TEST_P(WaitedTest, WhoIsHeldUpWhenItCouldGoOnDoesNotWait) {
  EXPECT_EQ(waited_ms(GetParam(), true), (std::vector<std::string>{"41", "41", "0"}));
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
