// Who failed first, and who waits for whom. The processes are real children that sleep, stop or
// die.
#include "runtime/supervisor/group_failure.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal {
namespace {

class GroupFailureTest : public testing::Test {
 protected:
  ~GroupFailureTest() override {
    for (RankProcess& rank : ranks_) {
      if (!rank.reaped) ::kill(rank.process.pid, SIGKILL);
      rank.reap(Deadline::after_s(10));
    }
  }

  RankProcess& add(WorkerPhase phase) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (;;) ::pause();
    }
    ranks_.emplace_back(WorkerProcess{pid, Fd()}, Channel(Fd()));
    ranks_.back().phase = phase;
    return ranks_.back();
  }
  static void kill_with(RankProcess& rank, int signal) {
    ::kill(rank.process.pid, signal);
    rank.reap(Deadline::after_s(10));
  }
  static void stop(RankProcess& rank) {
    ::kill(rank.process.pid, SIGSTOP);
    ::waitpid(rank.process.pid, nullptr, WUNTRACED);
  }
  static WorkerFailure waits(std::vector<int32_t> for_whom) {
    return {Status::error(Code::kUnavailable, "given up"),
            {42, "all_reduce of 576 floats", std::move(for_whom)}};
  }

  std::vector<RankProcess> ranks_;
  const GroupPhase step_{false, "step 7"};
};

TEST_F(GroupFailureTest, ADeathWithoutAWordComesBeforeComplaints) {
  add(WorkerPhase::kServe).failure = {Status::error(Code::kInternal, "a reason of its own"), {}};
  add(WorkerPhase::kServe);
  add(WorkerPhase::kServe).failure = {
      Status::error(Code::kUnavailable, "rank 1 has closed its end"), {}};
  kill_with(ranks_[1], SIGKILL);
  const GroupFailure failure = explain_failure(ranks_, step_);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.phase, "step 7");
  EXPECT_TRUE(failure.outside);
  EXPECT_FALSE(failure.moving);
  EXPECT_EQ(failure.status.code(), Code::kAborted);
  EXPECT_NE(failure.status.message().find("killed by signal 9"), std::string::npos)
      << failure.status.message();
}

TEST_F(GroupFailureTest, AReasonOfOnesOwnComesBeforeAGonePeer) {
  add(WorkerPhase::kServe).failure = {
      Status::error(Code::kUnavailable, "rank 1 has closed its end"), {}};
  add(WorkerPhase::kServe).failure = {Status::error(Code::kDataLoss, "the sum is wrong"), {}};
  const GroupFailure failure = explain_failure(ranks_, step_);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_FALSE(failure.outside);
  EXPECT_NE(failure.status.to_string().find("the sum is wrong"), std::string::npos);
}

TEST_F(GroupFailureTest, ItsOwnFaultIsNotOutside) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) {
    ranks_.clear();
    add(WorkerPhase::kSelfTest);
    kill_with(ranks_[0], signal);
    const GroupFailure failure = explain_failure(ranks_, {true, "self-test"});
    EXPECT_FALSE(failure.outside) << signal;
    EXPECT_TRUE(failure.moving) << "in a phase where it only moved bytes";
    EXPECT_EQ(failure.phase, "self-test");
  }
}

TEST_F(GroupFailureTest, AStoppedRankIsWhomTheOthersWaitFor) {
  add(WorkerPhase::kServe).failure = waits({2});
  add(WorkerPhase::kServe).failure = waits({0, 2});
  add(WorkerPhase::kServe);
  stop(ranks_[2]);
  const GroupFailure failure = explain_silence(ranks_, step_, 10);
  EXPECT_EQ(failure.rank, 2);
  EXPECT_TRUE(failure.outside);
  const std::string told(failure.status.message());
  EXPECT_EQ(failure.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(told.find("no answer for 10 s in phase step 7; rank 2 (step 7) is stopped by a signal"),
            0u)
      << told;
  EXPECT_NE(told.find("rank 0 (step 7, collective 42, all_reduce of 576 floats) waits for rank 2"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("waits for ranks 0, 2"), std::string::npos) << told;
}

TEST_F(GroupFailureTest, TheRootWaitsForNobody) {
  add(WorkerPhase::kServe).failure = waits({1});
  add(WorkerPhase::kServe);  // computes for ever, and says nothing
  add(WorkerPhase::kServe).failure = waits({0, 1});
  const GroupFailure failure = explain_silence(ranks_, step_, 2.5);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_FALSE(failure.outside);
  EXPECT_TRUE(failure.moving);
  EXPECT_NE(failure.status.message().find("rank 1 (step 7) does not answer"), std::string::npos)
      << failure.status.message();
}

TEST_F(GroupFailureTest, ARankThatIsReadyIsNotLate) {
  add(WorkerPhase::kServe);
  add(WorkerPhase::kLoad);
  const GroupFailure failure = explain_silence(ranks_, {true, "load"}, 30);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.phase, "load");
  EXPECT_FALSE(failure.moving) << "another transport would not load faster";
}

}  // namespace
}  // namespace shoal
