// The budget and the order of requests on their way in. The calls are fakes: they read nothing,
// and say how many bytes have arrived.
#include "server/intake/intake.h"

#include <atomic>
#include <functional>
#include <future>
#include <gtest/gtest.h>

#include "server/intake/fair_queue.h"
#include "tests/moved_clock.h"
#include "tests/server/intake/lone_intake.h"

namespace shoal {
namespace {

class FakeCall final : public FrontCall {
 public:
  void read() override { ++reads; }
  uint64_t received() override { return brought; }
  void work() override {
    if (on_hold) on_hold();
    if (hold.valid()) hold.wait();
    if (on_work) on_work();
    worked.set_value();
  }
  void reject(const RefusedRequest& why) override {
    if (on_reject) on_reject();
    refusal = why.code();
    refused = why.why;
    retry_ms = why.retry_ms;
  }
  void output_ready() override {}
  void drop_if_slow(std::chrono::milliseconds limit) override { slow_limit = limit; }

  int reads = 0;
  std::chrono::milliseconds slow_limit{0};
  std::atomic<uint64_t> brought = 0;
  Code refusal = Code::kOk;
  std::shared_future<void> hold;
  std::function<void()> on_hold, on_work, on_reject;
  NotTaken refused = NotTaken::kInvalid;
  int retry_ms = 0;
  std::promise<void> worked;
};

std::shared_ptr<FakeCall> enter(Intake& intake, const std::string& client = "client") {
  auto call = std::make_shared<FakeCall>();
  intake.enter(call, client);
  return call;
}

TEST(Intake, ReadsOnlyWhatTheBudgetHasRoomFor) {
  // The last place is kept for another client.
  LoneIntake intake({.budget_bytes = 4 * kMaxRequestBytes});
  std::vector<std::shared_ptr<FakeCall>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(enter(intake));
  const auto read = [&] {
    std::string which;
    for (const auto& call : calls) which += call->reads > 0 ? 'r' : '.';
    return which;
  };
  EXPECT_EQ(read(), "rrr..");
  EXPECT_EQ(intake.counted_bytes(), 3 * kMaxRequestBytes);
  intake.leave(*calls[0]);
  EXPECT_EQ(read(), "rrrr.");
  intake.arrived(*calls[1], kMaxRequestBytes - 100);
  calls[1]->worked.get_future().wait();
  EXPECT_EQ(read(), "rrrr.") << "it takes nearly all of its place";
  intake.accepted(*calls[1], 0);
  EXPECT_EQ(read(), "rrrrr");
  intake.leave(*calls[2]);
  intake.accepted(*calls[1], 40);
  EXPECT_EQ(intake.counted_bytes(), 2 * kMaxRequestBytes + 40);
}

TEST(Intake, RejectsThoseWhoWaitForTooLong) {
  LoneIntake intake({.budget_bytes = kMaxRequestBytes, .max_waiting = 2});
  const auto reading = enter(intake), first = enter(intake), second = enter(intake);
  EXPECT_EQ(enter(intake)->refusal, Code::kResourceExhausted) << "two may wait";
  const RunningClock::time_point now = RunningClock::now();
  intake.reject_late(now + std::chrono::milliseconds(4'000));
  EXPECT_EQ(reading->refusal, Code::kOk);
  intake.reject_late(now + std::chrono::milliseconds(6'000));
  EXPECT_EQ(reading->refusal, Code::kResourceExhausted) << "it sends slowly while others wait";
  EXPECT_EQ(first->refusal, Code::kOk);
  intake.leave(*reading);
  EXPECT_EQ(first->reads, 1);
  intake.reject_late(now + std::chrono::milliseconds(11'000));
  EXPECT_EQ(second->refusal, Code::kResourceExhausted);
  intake.leave(*first);
  intake.leave(*second);
  EXPECT_EQ(intake.counted_bytes(), 0u);

  const auto alone = enter(intake);
  intake.reject_late(now + std::chrono::hours(1));
  EXPECT_EQ(alone->refusal, Code::kOk) << "nobody waits for its place";
}

/// Ends the calls of those that were rejected, as a front does.
void leave_if_refused(Intake& intake, const std::vector<std::shared_ptr<FakeCall>>& calls) {
  for (const auto& call : calls)
    if (call->refusal != Code::kOk) intake.leave(*call);
}

TEST(Intake, OneThatStopsIsEvictedForAnotherClient) {
  const MovedClock clock;
  LoneIntake intake({});
  std::vector<std::shared_ptr<FakeCall>> stopped;
  for (int i = 0; i < 60; ++i) stopped.push_back(enter(intake, i % 2 == 0 ? "a" : "b"));
  const auto third = enter(intake, "third");
  EXPECT_EQ(third->reads, 0) << "the two have all places";
  MovedClock::advance(0.249);
  intake.reject_late(RunningClock::now());
  leave_if_refused(intake, stopped);
  EXPECT_EQ(third->reads, 0) << "everybody has a quarter of a second";
  MovedClock::advance(0.001);
  intake.reject_late(RunningClock::now());
  EXPECT_EQ(stopped[0]->refused, NotTaken::kQueueFull);
  EXPECT_GT(stopped[0]->retry_ms, 0);
  leave_if_refused(intake, stopped);
  EXPECT_EQ(third->reads, 1) << "at the first look";
}

/// There are sixteen places, so the last of forty clients is read in the third round.
TEST(Intake, FortyThatStopDelayAnotherClientByThreeRounds) {
  const MovedClock clock;
  LoneIntake intake({});
  std::vector<std::shared_ptr<FakeCall>> stopped;
  for (int i = 0; i < 160; ++i) stopped.push_back(enter(intake, cat("client ", i % 40)));
  const auto other = enter(intake, "other");
  int rounds = 0;
  for (; other->reads == 0 && rounds < 10; ++rounds) {
    MovedClock::advance(0.25);
    intake.reject_late(RunningClock::now());
    leave_if_refused(intake, stopped);
  }
  EXPECT_LE(rounds, 3);
}

TEST(Intake, OneThatMovesKeepsItsPlace) {
  const MovedClock clock;
  LoneIntake intake({.budget_bytes = kMaxRequestBytes});
  const auto slow = enter(intake, "slow"), other = enter(intake, "other");
  for (int look = 0; look < 19; ++look) {
    MovedClock::advance(0.25);
    slow->brought += 16 << 10;
    intake.reject_late(RunningClock::now());
    ASSERT_EQ(slow->refusal, Code::kOk) << look;
  }
  MovedClock::advance(0.25);
  slow->brought += (16 << 10) - 1;
  intake.reject_late(RunningClock::now());
  EXPECT_EQ(slow->refusal, Code::kResourceExhausted);
  EXPECT_EQ(other->refusal, Code::kOk);
}

TEST(Intake, OneThatStopsKeepsItsPlaceIfNoOtherClientWaits) {
  const MovedClock clock;
  LoneIntake intake({.budget_bytes = kMaxRequestBytes});
  const auto first = enter(intake, "one"), second = enter(intake, "one");
  for (int look = 0; look < 16; ++look) {
    MovedClock::advance(0.25);
    intake.reject_late(RunningClock::now());
  }
  EXPECT_EQ(first->refusal, Code::kOk);
  EXPECT_EQ(second->reads, 0);
}

TEST(Intake, NoClientHasASecondPlaceBeforeTheOthersHaveOne) {
  LoneIntake intake({.budget_bytes = 4 * kMaxRequestBytes});
  const auto first = enter(intake, "a");
  std::vector<std::shared_ptr<FakeCall>> calls{enter(intake, "a"), enter(intake, "a")};
  const auto waits = enter(intake, "a");
  const auto b = enter(intake, "b"), c = enter(intake, "c");
  EXPECT_EQ(b->reads, 1) << "the last place";
  EXPECT_EQ(c->reads, 0);
  intake.leave(*first);
  EXPECT_EQ(waits->reads, 0) << "it came earlier, but its client has two places";
  EXPECT_EQ(c->reads, 1);
}

TEST(Intake, ADrainRejectsWhatHasNotBeenRead) {
  LoneIntake intake({.budget_bytes = kMaxRequestBytes});
  const auto arriving = enter(intake), waiting = enter(intake);
  intake.drain();
  const auto later = enter(intake);
  for (const auto& call : {arriving, waiting, later}) EXPECT_EQ(call->refused, NotTaken::kDraining);
  EXPECT_FALSE(intake.wait_until_empty(Deadline::after_ms(0))) << "their refusals are not written";
  for (const auto& call : {arriving, waiting, later}) intake.leave(*call);
  EXPECT_TRUE(intake.wait_until_empty(Deadline::infinite()));
}

TEST(Intake, OnlyAcceptedRequestsHaveReadersThatAreSlow) {
  LoneIntake intake({});
  const auto arriving = enter(intake), accepted = enter(intake);
  intake.arrived(*accepted, 1);
  accepted->worked.get_future().wait();
  intake.accepted(*accepted, 1);
  intake.drop_slow_readers(std::chrono::milliseconds(7));
  EXPECT_EQ(accepted->slow_limit.count(), 7);
  EXPECT_EQ(arriving->slow_limit.count(), 0);
}

TEST(Intake, NobodyIsBothRejectedAndWorkedOn) {
  LoneIntake intake({.budget_bytes = kMaxRequestBytes});
  const auto slow = enter(intake, "a"), waits = enter(intake, "b");
  ASSERT_EQ(slow->reads, 1);
  std::atomic<bool> worked = false;
  slow->on_work = [&] { worked = true; };
  // The last bytes come while others are rejected in the same round.
  waits->on_reject = [&] { intake.arrived(*slow, 10); };
  intake.reject_late(RunningClock::now() + std::chrono::seconds(11));
  EXPECT_EQ(waits->refused, NotTaken::kNoMemory);
  EXPECT_EQ(slow->refused, NotTaken::kQueueFull);
  intake.stop();  // joins the threads that would have worked on it
  EXPECT_FALSE(worked);
}

TEST(Intake, WhoeverLeavesTheQueueTakesWhatWasReadAlong) {
  LoneIntake intake({});
  std::promise<void> release, entered;
  const auto held = enter(intake);
  held->hold = release.get_future().share();
  held->on_hold = [&] { entered.set_value(); };
  intake.arrived(*held, 8 << 20);
  entered.get_future().wait();
  auto gone = enter(intake);
  intake.arrived(*gone, 8 << 20);
  const std::weak_ptr<FakeCall> left = gone;
  intake.leave(*gone);
  gone.reset();
  EXPECT_TRUE(left.expired()) << "its lane does not keep it";
  release.set_value();
}

TEST(Intake, AnswersThatAreKeptDoNotKeepOthersFromBeingRead) {
  constexpr size_t kMebibyte = size_t{1} << 20;
  LoneIntake intake({});
  std::vector<std::shared_ptr<FakeCall>> greedy;
  int kept = 0;
  for (int i = 0; i < 8; ++i) {
    greedy.push_back(enter(intake, "greedy"));
    intake.arrived(*greedy.back(), 100);
    const RefusedRequest refused = intake.keep_answer(*greedy.back(), 63 * kMebibyte);
    kept += refused.ok() ? 1 : 0;
    EXPECT_EQ(refused.ok() ? NotTaken::kNoMemory : refused.why, NotTaken::kNoMemory);
    intake.accepted(*greedy.back(), 100);
  }
  EXPECT_EQ(kept, 3) << "the fourth would leave too little for the largest answer of another one";
  const auto modest = enter(intake, "modest");
  EXPECT_EQ(modest->reads, 1);
  EXPECT_TRUE(intake.keep_answer(*modest, 63 * kMebibyte).ok());
  EXPECT_FALSE(intake.keep_answer(*greedy[7], 1 * kMebibyte * 4).ok()) << "all of it is taken";
  for (const auto& call : greedy) intake.leave(*call);
  intake.leave(*modest);
  const auto next = enter(intake, "greedy");
  EXPECT_TRUE(intake.keep_answer(*next, 1000 * kMebibyte).ok()) << "the only one at all";
}

TEST(Intake, AShortRequestDoesNotWaitForALongOne) {
  LoneIntake intake({});
  std::promise<void> release;
  const auto long_one = enter(intake), other_long = enter(intake), short_one = enter(intake);
  long_one->hold = release.get_future().share();
  intake.arrived(*long_one, 8 << 20);
  intake.arrived(*other_long, 8 << 20);
  intake.arrived(*short_one, 100);
  short_one->worked.get_future().wait();
  auto other = other_long->worked.get_future();
  // no deadline: it cannot begin yet, however long this waits
  EXPECT_EQ(other.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  release.set_value();
  other.wait();
}

TEST(Intake, ClientsTakeTurns) {
  LoneIntake intake({});
  std::promise<void> release;
  const auto held = enter(intake);
  held->hold = release.get_future().share();
  intake.arrived(*held, 1);
  std::vector<std::shared_ptr<FakeCall>> greedy;
  std::atomic<int> worked = 0;
  for (int i = 0; i < 8; ++i) greedy.push_back(enter(intake, "greedy"));
  const auto modest = enter(intake, "modest");
  modest->on_work = [&] { EXPECT_LE(worked, 1) << "at most one of the other client's goes first"; };
  for (const auto& call : greedy) {
    call->on_work = [&] { ++worked; };
    intake.arrived(*call, 1);
  }
  intake.arrived(*modest, 1);
  release.set_value();
  modest->worked.get_future().wait();
  for (const auto& call : greedy) call->worked.get_future().wait();
  EXPECT_EQ(worked, 8);
}

TEST(Intake, AGreedyClientIsEvictedBeforeTokenizing) {
  LoneIntake intake({.max_queued = 4});
  std::promise<void> release, entered;
  const auto held = enter(intake);
  held->hold = release.get_future().share();
  held->on_hold = [&] { entered.set_value(); };
  intake.arrived(*held, 1);
  entered.get_future().wait();
  std::vector<std::shared_ptr<FakeCall>> greedy;
  for (int i = 0; i < 5; ++i) {
    greedy.push_back(enter(intake, "greedy"));
    intake.arrived(*greedy.back(), 1);
  }
  EXPECT_EQ(greedy[4]->refused, NotTaken::kQueueFull);
  const auto modest = enter(intake, "modest");
  intake.arrived(*modest, 1);
  EXPECT_EQ(greedy[3]->refused, NotTaken::kShareExceeded);
  EXPECT_EQ(modest->refusal, Code::kOk);
  release.set_value();
  modest->worked.get_future().wait();
  for (size_t i = 0; i < 3; ++i) greedy[i]->worked.get_future().wait();
}

TEST(FairQueue, TwoClientsDoNotEvictEachOtherInTurn) {
  FairQueue<int> queue;
  for (int item = 1; item <= 2; ++item) queue.push("a", item);
  queue.push("b", 3);
  EXPECT_FALSE(queue.evict_for("b", 3)) << "a would have one of three, and b two";
  EXPECT_EQ(queue.evict_for("new", 3), 2);
  EXPECT_EQ(queue.size(), 2u);
}

TEST(Intake, TwoClientsWithMuchStillGetTheRoomThatIsFree) {
  LoneIntake intake({.budget_bytes = kMaxRequestBytes});
  const auto reading = enter(intake, "a"), first = enter(intake, "a"), second = enter(intake, "b");
  intake.leave(*reading);
  EXPECT_EQ(first->reads + second->reads, 1);
}

TEST(Intake, AGreedyClientIsEvictedFromEveryQueue) {
  LoneIntake intake({.budget_bytes = 4 * kMaxRequestBytes, .max_waiting = 4});
  std::vector<std::shared_ptr<FakeCall>> greedy;
  for (int i = 0; i < 8; ++i) greedy.push_back(enter(intake, "greedy"));
  EXPECT_EQ(greedy[2]->reads, 1) << "alone, it may use all of the budget but the last place";
  EXPECT_EQ(greedy[3]->reads, 0);
  EXPECT_EQ(enter(intake, "greedy")->refusal, Code::kResourceExhausted);
  const auto modest = enter(intake, "modest"), other = enter(intake, "other");
  EXPECT_EQ(modest->reads, 1) << "the last place is for others";
  EXPECT_EQ(other->refusal, Code::kOk);
  EXPECT_EQ(greedy[7]->refused, NotTaken::kQueueFull);
  EXPECT_EQ(greedy[6]->refused, NotTaken::kShareExceeded) << "the latest one is evicted";
  EXPECT_EQ(greedy[5]->refusal, Code::kOk);
  intake.leave(*greedy[0]);
  EXPECT_EQ(other->reads, 1) << "although more of the greedy one waited first";
  EXPECT_EQ(greedy[3]->reads, 0);
  intake.leave(*greedy[1]);
  EXPECT_EQ(greedy[3]->reads, 1) << "it has less than half by now";
  for (const auto& call : greedy) intake.leave(*call);
  intake.leave(*modest);
  intake.leave(*other);
  EXPECT_EQ(intake.counted_bytes(), 0u);
}

TEST(Intake, BoundsItsQueues) {
  LoneIntake intake({.max_queued = 1});
  std::promise<void> release;
  const auto held = enter(intake), refused = enter(intake);
  held->hold = release.get_future().share();
  intake.arrived(*held, 1);
  // Until the thread has taken the first one, a second one finds the queue full.
  auto queued = enter(intake);
  for (intake.arrived(*queued, 1); queued->refusal != Code::kOk; intake.arrived(*queued, 1)) {
    intake.leave(*queued);
    queued = enter(intake);
  }
  intake.arrived(*refused, 1);
  EXPECT_EQ(refused->refusal, Code::kResourceExhausted);
  release.set_value();
  queued->worked.get_future().wait();
}

}  // namespace
}  // namespace shoal
