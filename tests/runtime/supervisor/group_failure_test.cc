// Which rank failed first, and which ranks wait for which. The processes are real children that
// sleep, stop or die.
#include "runtime/supervisor/group_failure.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/last_words.h"
#include "tests/guard.h"

namespace shoal {
namespace {

class GroupFailureTest : public testing::Test {
 protected:
  ~GroupFailureTest() override {
    for (RankProcess& rank : ranks_) {
      if (!rank.reaped) ::kill(rank.process.pid, SIGKILL);
      rank.reap(Deadline::after_ms(kGuardMs));
    }
  }

  /// A process that any signal ends, although a sanitizer handles some in this one.
  static pid_t fork_waiting() {
    constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGABRT};
    struct sigaction before[std::size(kFaults)];
    struct sigaction none {};
    none.sa_handler = SIG_DFL;
    for (size_t i = 0; i < std::size(kFaults); ++i) ::sigaction(kFaults[i], &none, &before[i]);
    const pid_t pid = ::fork();
    for (size_t i = 0; pid != 0 && i < std::size(kFaults); ++i)
      ::sigaction(kFaults[i], &before[i], nullptr);
    while (pid == 0) ::pause();
    return pid;
  }

  RankProcess& add(Phase phase) {
    const pid_t pid = fork_waiting();
    ranks_.emplace_back(WorkerProcess{pid, Fd()}, Channel(Fd()));
    ranks_.back().phase = phase;
    return ranks_.back();
  }
  static void kill_with(RankProcess& rank, int signal) {
    ::kill(rank.process.pid, signal);
    rank.reap(Deadline::after_ms(kGuardMs));
  }
  static void stop(RankProcess& rank) {
    ::kill(rank.process.pid, SIGSTOP);
    ::waitpid(rank.process.pid, nullptr, WUNTRACED);
  }
  static RankFailure waits(std::vector<int32_t> for_whom) {
    return {Status::error(Code::kUnavailable, "given up"),
            {42, "all_reduce of 576 floats", std::move(for_whom), ""},
            Fault::kTransport};
  }

  /// Adds one of `count` ranks, which waits for its device, and cannot tell for whom that waits.
  void add_on_device(int count, DeviceMark device, uint64_t step = 7) {
    device.step = step;
    const auto mine = static_cast<int32_t>(ranks_.size());
    RankFailure failure = waits({});
    for (int32_t rank = 0; rank < count; ++rank) {
      if (rank != mine) failure.wait.waits_for.push_back(rank);
    }
    failure.wait.where = cat("its GPU at ", device.mark);
    failure.wait.device = device;
    add(Phase::kIdle).failure = std::move(failure);
  }
  /// What is said of it.
  static std::string of_device(int rank, int mark, const std::string& waits_for, int step = 7) {
    return cat("; rank ", rank, " (step ", step, ", its GPU at ", mark,
               ", last enqueued: collective 42, all_reduce of 576 floats) waits for ", waits_for);
  }
  void expect_silence(int rank, const std::string& said) {
    const Failure failure = explain_silence(ranks_, step_, 2.5);
    EXPECT_EQ(failure.rank, rank);
    EXPECT_EQ(failure.step, 7u);
    EXPECT_EQ(failure.signal, 0) << "it has not ended";
    EXPECT_NE(failure.why.message().find(said), std::string::npos) << failure.why.message();
  }

  std::vector<RankProcess> ranks_;
  const GroupPhase step_{false, Phase::kStep, 7};
};

TEST_F(GroupFailureTest, ADeathWithoutAWordComesBeforeComplaints) {
  add(Phase::kIdle).failure = {
      Status::error(Code::kInternal, "a reason of its own"), {}, Fault::kOwn};
  add(Phase::kIdle);
  add(Phase::kIdle).failure = {
      Status::error(Code::kUnavailable, "rank 1 has closed its end"), {}, Fault::kTransport};
  kill_with(ranks_[1], SIGKILL);
  const Failure failure = explain_failure(ranks_, step_, false);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.phase, Phase::kStep);
  EXPECT_EQ(failure.step, 7u);
  EXPECT_EQ(failure.signal, SIGKILL);
  EXPECT_EQ(failure.fault, Fault::kOutside);
  EXPECT_EQ(failure.why.code(), Code::kAborted);
  const std::string_view why = failure.why.message();
  EXPECT_NE(why.find("killed by signal 9"), std::string::npos) << why;
  EXPECT_NE(why.find("; somebody sent it, and not the kernel for lack of memory"),
            std::string::npos)
      << why;
}

TEST_F(GroupFailureTest, EvidenceIsAwaitedFromWhoCanGiveIt) {
  const RankFailure complaint{
      Status::error(Code::kUnavailable, "rank 1 has closed its end"), {}, Fault::kTransport};
  add(Phase::kIdle).failure = complaint;
  add(Phase::kIdle);
  for (const bool late : {false, true})
    EXPECT_TRUE(more_evidence_may_come(ranks_, late)) << "rank 1 may have died";
  stop(ranks_[1]);
  EXPECT_TRUE(more_evidence_may_come(ranks_, true)) << "rank 0 has not left";
  kill_with(ranks_[0], SIGTERM);
  EXPECT_FALSE(more_evidence_may_come(ranks_, true)) << "rank 1 is stopped";
  kill_with(ranks_[1], SIGKILL);
  EXPECT_FALSE(more_evidence_may_come(ranks_, false)) << "there is the death";
}

TEST_F(GroupFailureTest, AReasonOfOnesOwnNeedsLittleEvidence) {
  add(Phase::kIdle).failure = {Status::error(Code::kDataLoss, "the sum is wrong"), {}, Fault::kOwn};
  add(Phase::kIdle);
  kill_with(ranks_[0], SIGTERM);
  EXPECT_TRUE(more_evidence_may_come(ranks_, false));
  EXPECT_FALSE(more_evidence_may_come(ranks_, true));
}

TEST_F(GroupFailureTest, AKillMayBeForWantOfMemory) {
  add(Phase::kIdle);
  kill_with(ranks_[0], SIGKILL);
  const Failure failure = explain_failure(ranks_, step_, true);
  EXPECT_EQ(failure.fault, Fault::kOutOfMemory);
  EXPECT_NE(failure.why.message().find("see dmesg"), std::string::npos) << failure.why.message();
  EXPECT_EQ(explain_failure(ranks_, step_, false).fault, Fault::kOutside);
}

TEST_F(GroupFailureTest, OtherSignalsAreNoWantOfMemory) {
  add(Phase::kIdle);
  kill_with(ranks_[0], SIGTERM);
  EXPECT_EQ(explain_failure(ranks_, step_, true).fault, Fault::kOutside);
}

TEST_F(GroupFailureTest, AReasonOfOnesOwnComesBeforeAGonePeer) {
  add(Phase::kIdle).failure = {
      Status::error(Code::kUnavailable, "rank 1 has closed its end"), {}, Fault::kTransport};
  add(Phase::kIdle).failure = {
      Status::error(Code::kDataLoss, "the sum is wrong"), {}, Fault::kTransport};
  const Failure failure = explain_failure(ranks_, step_, false);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.fault, Fault::kTransport) << "the rank said so";
  EXPECT_NE(failure.why.to_string().find("rank 1 failed in phase step 7"), std::string::npos);
  EXPECT_NE(failure.why.to_string().find("the sum is wrong"), std::string::npos);
}

TEST_F(GroupFailureTest, AModelThatIsWrongIsNoFailureOfARank) {
  const Status wrong = Status::error(Code::kInvalidArgument, "the tensor has another shape");
  add(Phase::kLoad).failure = {wrong, {}, Fault::kOwn};
  const GroupPhase load{true, Phase::kLoad, 0};
  EXPECT_EQ(explain_failure(ranks_, load, false).why.message(), "the model cannot be loaded");
  ranks_[0].failure->fault = Fault::kShortage;
  EXPECT_EQ(explain_failure(ranks_, load, false).why.message(), "rank 0 failed in phase load");
}

TEST_F(GroupFailureTest, WhatTheKernelRefusesARankIsAReasonOfItsOwn) {
  add(Phase::kOpen).failure = {
      Status::error(Code::kUnavailable, "rank 1 has closed its connection", ECONNRESET),
      {},
      Fault::kTransport};
  add(Phase::kOpen).failure = {
      Status::error(Code::kUnavailable, "no memfd can be made", EPERM), {}, Fault::kTransport};
  EXPECT_EQ(explain_failure(ranks_, {true, Phase::kOpen}, false).rank, 1);
}

TEST_F(GroupFailureTest, ItsOwnFaultIsNotOutside) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) {
    ranks_.clear();
    add(Phase::kSelfTest);
    kill_with(ranks_[0], signal);
    const Failure failure = explain_failure(ranks_, {true, Phase::kSelfTest}, false);
    EXPECT_EQ(failure.fault, Fault::kTransport)
        << signal << " in a phase in which it only moved bytes";
    EXPECT_EQ(failure.phase, Phase::kSelfTest);
    ranks_.clear();
    add(Phase::kIdle);
    kill_with(ranks_[0], signal);
    const Failure in_step = explain_failure(ranks_, step_, false);
    EXPECT_EQ(in_step.fault, Fault::kDeath) << signal;
    EXPECT_EQ(in_step.signal, signal);
  }
}

TEST_F(GroupFailureTest, ARankOfAnotherBuildIsNotTriedAgain) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(kOtherBuildExitCode);
  ranks_.emplace_back(WorkerProcess{pid, Fd()}, Channel(Fd()));
  ranks_.back().reap(Deadline::after_ms(kGuardMs));
  const Failure failure = explain_failure(ranks_, {true, Phase::kSpawn}, false);
  EXPECT_EQ(failure.fault, Fault::kOwn) << "no restart cures it";
  EXPECT_EQ(failure.why.code(), Code::kAborted) << "but a new start does";
  EXPECT_NE(failure.why.message().find("of another build"), std::string::npos);
}

TEST_F(GroupFailureTest, AnEndForWantOfMemoryIsNoFaultOfTheTransport) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(kShortageExitCode);
  ranks_.emplace_back(WorkerProcess{pid, Fd()}, Channel(Fd()));
  ranks_[0].phase = Phase::kSelfTest;
  ASSERT_TRUE(ranks_[0].reap(Deadline::after_ms(kGuardMs)));
  const Failure failure = explain_failure(ranks_, {true, Phase::kSelfTest}, false);
  EXPECT_EQ(failure.fault, Fault::kShortage);
  EXPECT_EQ(failure.why.code(), Code::kResourceExhausted);
  EXPECT_NE(failure.why.message().find("memory, a thread or a descriptor was refused"),
            std::string::npos)
      << failure.why.message();
}

TEST_F(GroupFailureTest, AStoppedRankIsWhomTheOthersWaitFor) {
  add(Phase::kIdle).failure = waits({2});
  add(Phase::kIdle).failure = waits({0, 2});
  add(Phase::kIdle);
  stop(ranks_[2]);
  const Failure failure = explain_silence(ranks_, step_, 10);
  EXPECT_EQ(failure.rank, 2);
  EXPECT_EQ(failure.fault, Fault::kHeldUp);
  const std::string told(failure.why.message());
  EXPECT_EQ(failure.why.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(told.find("no answer for 10 s in phase step 7; rank 2 (step 7) is stopped by a signal"),
            0u)
      << told;
  EXPECT_NE(told.find("rank 0 (step 7, collective 42, all_reduce of 576 floats) waits for rank 2"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("waits for ranks 0, 2"), std::string::npos) << told;
  const std::string an_hour(explain_silence(ranks_, step_, 3600).why.message());
  EXPECT_EQ(an_hour.find("no answer for 3600 s in phase step 7"), 0u) << an_hour;
}

TEST_F(GroupFailureTest, TheRootWaitsForNobody) {
  add(Phase::kIdle).failure = waits({1});
  add(Phase::kIdle);  // it computes for ever and reports nothing
  add(Phase::kIdle).failure = waits({0, 1});
  const Failure failure = explain_silence(ranks_, step_, 2.5);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.fault, Fault::kTransport);
  EXPECT_NE(failure.why.message().find("rank 1 (step 7) does not answer"), std::string::npos)
      << failure.why.message();
}

TEST_F(GroupFailureTest, ARankThatWaitsInAnExchangeSaysForWhom) {
  add(Phase::kTouch).failure = {Status::error(Code::kUnavailable, "given up"),
                                {0, "an exchange through the front", {1}, ""},
                                Fault::kOwn};
  add(Phase::kTouch);
  const Failure failure = explain_silence(ranks_, {true, Phase::kTouch}, 30);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_NE(
      failure.why.message().find("rank 0 (touch, an exchange through the front) waits for rank 1"),
      std::string::npos)
      << failure.why.message();
}

TEST_F(GroupFailureTest, ARankThatWaitsForItsDeviceSaysWhatThatIsDoing) {
  add(Phase::kIdle).failure = {Status::error(Code::kUnavailable, "given up"),
                               {0, "", {}, "its GPU in layer 5, mlp"},
                               Fault::kOwn};
  const Failure failure = explain_silence(ranks_, step_, 2.5);
  EXPECT_EQ(failure.rank, 0);
  EXPECT_NE(failure.why.message().find("rank 0 (step 7, its GPU in layer 5, mlp) waits"),
            std::string::npos)
      << failure.why.message();
}

// Marks of sums are odd here.
TEST_F(GroupFailureTest, DevicesThatSumWaitForTheOneThatComputes) {
  add_on_device(3, {7, true});
  add_on_device(3, {6, false});
  add_on_device(3, {7, true});
  expect_silence(
      1, cat(of_device(1, 6, "nobody"), of_device(0, 7, "rank 1"), of_device(2, 7, "rank 1")));
}

TEST_F(GroupFailureTest, DevicesThatComputeDoNotWaitForEachOther) {
  add_on_device(3, {7, true});
  add_on_device(3, {6, false});
  add_on_device(3, {6, false});
  expect_silence(
      1, cat(of_device(1, 6, "nobody"), of_device(0, 7, "ranks 1, 2"), of_device(2, 6, "nobody")));
}

TEST_F(GroupFailureTest, ADeviceThatHangsInASumIsWhomThoseInTheNextOneWaitFor) {
  add_on_device(2, {9, true});
  add_on_device(2, {7, true});
  expect_silence(1, cat(of_device(1, 7, "nobody"), of_device(0, 9, "rank 1")));
}

// Rank 0 does not wait for the end of a step that wants no logits.
TEST_F(GroupFailureTest, ADeviceThatHangsAtTheEndOfAStepIsWhomThoseInTheNextOneWaitFor) {
  add_on_device(2, {1, true});
  add_on_device(2, {40, false}, 6);
  expect_silence(1, cat(of_device(1, 40, "nobody", 6), of_device(0, 1, "rank 1")));
}

TEST_F(GroupFailureTest, ADeviceThatHangsInTheLastSumOfAStepIsWhomThoseInTheNextOneWaitFor) {
  add_on_device(2, {1, true});
  add_on_device(2, {39, true}, 6);
  expect_silence(1, cat(of_device(1, 39, "nobody", 6), of_device(0, 1, "rank 1")));
}

// No other transport would be quicker.
TEST_F(GroupFailureTest, ADeviceThatComputesDoesNotHangForItsTransport) {
  add_on_device(2, {7, true});
  add_on_device(2, {6, false});
  EXPECT_EQ(explain_silence(ranks_, step_, 2.5).fault, Fault::kSilence);
}

TEST_F(GroupFailureTest, ADeviceThatSumsMayHangForItsTransport) {
  add_on_device(2, {9, true});
  add_on_device(2, {7, true});
  EXPECT_EQ(explain_silence(ranks_, step_, 2.5).fault, Fault::kTransport);
}

TEST_F(GroupFailureTest, NobodyIsNamedForASumThatAllAreIn) {
  add_on_device(2, {7, true});
  add_on_device(2, {7, true});
  expect_silence(-1, cat(of_device(0, 7, "rank 1"), of_device(1, 7, "rank 0")));
}

TEST_F(GroupFailureTest, ARankThatHasItsLogitsWaitsForTheDeviceThatHasNot) {
  add(Phase::kIdle).failure = waits({1});
  add_on_device(2, {8, false});
  expect_silence(1, of_device(1, 8, "nobody"));
}

TEST_F(GroupFailureTest, ADeviceMayWaitForARankThatSaysNothing) {
  add_on_device(2, {7, true});
  add(Phase::kIdle);
  expect_silence(1, of_device(0, 7, "rank 1"));
}

TEST_F(GroupFailureTest, ARankThatIsReadyIsNotLate) {
  add(Phase::kIdle);
  add(Phase::kLoad);
  const Failure failure = explain_silence(ranks_, {true, Phase::kLoad}, 30);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.phase, Phase::kLoad);
  EXPECT_EQ(failure.fault, Fault::kSilence) << "another transport would not load faster";
}

}  // namespace
}  // namespace shoal
