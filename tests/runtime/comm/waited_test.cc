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
constexpr int kHeldUp = 0;
constexpr double kStep = 0.1;         // seconds of the moved clock
constexpr double kHeldUpFor = 0.060;  // likewise

/// A sum to which one rank comes later than the others.
struct LateSum {
  int rank;
  double seconds;  // of the moved clock
};
constexpr LateSum kLast{2, 0.041}, kFirst{0, 0.020};
constexpr size_t kMostSums = 2;

/// What all ranks' processes share: the time, and how far they have got.
struct Shared {
  std::atomic<RunningClock::duration> now;
  std::atomic<bool> waits[kMostSums][kRanks];
  std::atomic<bool> late_is_done;  // with the first sum

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

/// A rank that waits for the late one, in its own process.
class Waiter {
 public:
  Waiter(Shared& shared, bool held_up) : shared_(shared), held_up_(held_up) {}

  void enter(Communicator& communicator, size_t sum, int late) {
    communicator_ = &communicator;
    sum_ = sum;
    late_ = late;
    looks_ = 0;
  }
  void leave() { communicator_ = nullptr; }

  /// Called during its wait. The third look is certainly after a sleep for the late rank. If it is
  /// to be held up, it then stands still until that one's part is there, and for kHeldUpFor longer.
  Status look() {
    if (communicator_ == nullptr) return {};
    const std::vector<int> awaited = communicator_->wait_state().waits_for;
    if (awaited != std::vector<int>{late_} || ++looks_ != 3) return {};
    const int rank = communicator_->world().rank;
    shared_.waits[sum_][rank] = true;
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
  size_t sum_ = 0;
  int late_ = 0;
  int looks_ = 0;
};

/// The late rank lets the others wait. An error: they do not.
std::string come_late(Shared& shared, size_t sum, const LateSum& late) {
  const auto all_wait = [&] {
    for (int rank = 0; rank < kRanks; ++rank)
      if (rank != late.rank && !shared.waits[sum][rank]) return false;
    return true;
  };
  if (!eventually(all_wait)) return "the others do not wait";
  shared.advance(late.seconds);
  return "";
}

std::string in_ms(RunningClock::duration time) {
  return cat(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

/// What each rank has waited in these sums, in milliseconds, in all and for the previous rank
/// alone, as "41 0", or "unknown". held_up: rank kHeldUp goes on late, when it could have gone on
/// for kHeldUpFor.
std::vector<std::string> waited_ms(const char* transport, const std::vector<LateSum>& sums,
                                   bool held_up = false) {
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
         std::vector<float> out(tree.count);
         for (size_t sum = 0; sum < sums.size(); ++sum) {
           const LateSum& late = sums[sum];
           if (rank == late.rank && before) {
             if (std::string error = come_late(shared, sum, late); !error.empty()) return error;
           }
           waiter.enter(communicator, sum, late.rank);
           const Status status =
               communicator.all_reduce(tree.plan, tree.own[rank].data(), out.data(), tree.count);
           waiter.leave();
           if (!status.ok()) return status.to_string();
           if (rank == late.rank) shared.late_is_done = true;
         }
         const auto after = communicator.waited();
         if (!after) return "unknown";
         return in_ms(after->all - before->all) + " " +
                in_ms(after->for_previous - before->for_previous);
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

/// What is said of ranks whose steps of kStep each had waits like these.
std::string said(const std::vector<std::string>& waited) {
  std::vector<RankWaits> ranks(kRanks);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    char* rest = nullptr;
    const double all = std::strtod(waited[rank].c_str(), &rest);
    const double for_previous = std::strtod(rest, nullptr);
    for (int step = 0; step < kLeastSteps; ++step)
      ranks[rank].add(1, kStep, all / 1e3, for_previous / 1e3);
  }
  return to_text(group_waits(ranks));
}

TEST_P(WaitedTest, WhoComesLastMakesTheOthersWait) {
  const std::vector<std::string> waited = waited_ms(GetParam(), {kLast});
  ASSERT_EQ(waited, (std::vector<std::string>{"41 41", "41 0", "0 0"}));
  EXPECT_EQ(said(waited), "rank 2 makes the others wait 41 % of the step");
}

TEST_P(WaitedTest, WhatItWaitsItselfInAnotherSumTakesNothingAway) {
  const std::vector<std::string> waited = waited_ms(GetParam(), {kLast, kFirst});
  ASSERT_EQ(waited, (std::vector<std::string>{"41 41", "61 20", "20 0"}));
  EXPECT_EQ(said(waited), "rank 2 makes the others wait 41 % of the step");
}

TEST_P(WaitedTest, WhoIsHeldUpWhenItCouldGoOnDoesNotWait) {
  EXPECT_EQ(waited_ms(GetParam(), {kLast}, true),
            (std::vector<std::string>{"41 41", "41 0", "0 0"}));
}

INSTANTIATE_TEST_SUITE_P(All, WaitedTest, testing::ValuesIn(kTransports),
                         [](const auto& setting) { return test_name(setting.param); });
INSTANTIATE_TEST_SUITE_P(Devices, WaitedTest, testing::Values("host-memfd"),
                         [](const auto& setting) { return test_name(setting.param); });

class WaitedOnDevicesTest : public WaitedTest {};

TEST_P(WaitedOnDevicesTest, NothingIsKnownOfDevicesThatWaitForEachOther) {
  EXPECT_EQ(waited_ms(GetParam(), {kLast}), std::vector<std::string>(kRanks, "unknown"));
}

INSTANTIATE_TEST_SUITE_P(All, WaitedOnDevicesTest, testing::Values("cuda-ipc", "nccl-shm"),
                         [](const auto& setting) { return test_name(setting.param); });

}  // namespace
}  // namespace shoal
