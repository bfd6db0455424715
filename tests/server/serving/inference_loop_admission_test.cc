// Who waits in the loop's queue, and how those end that leave it before they have begun.
#include <atomic>
#include <gtest/gtest.h>
#include <set>
#include <thread>

#include "server/serving/inference_loop.h"
#include "tests/moved_clock.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

constexpr EngineLimits kOnePlace = {
    .max_num_seqs = 1, .max_num_batched_tokens = 64, .kv_blocks = 64, .max_model_len = 200};

/// A loop whose first step is held until open(), and that records the requests of all steps.
class HeldLoop {
 public:
  explicit HeldLoop(const QueueLimits& queue)
      : loop(test_model(), kOnePlace,
             [this](const StepPlan& plan) -> Result<StepOutcome> {
               if (!held_.exchange(true)) gate_.pass();
               if (!failure.ok()) return failure;
               for (const SequenceStep& step : plan.sequences)
                 if (in_steps.insert(step.id).second) seats.push_back(step.id);
               return Script{}(plan);
             },
             {.queue = queue}) {}
  ~HeldLoop() { open(); }

  std::shared_ptr<CollectingSink> submit(const std::string& client) {
    auto sink = std::make_shared<CollectingSink>();
    const auto id = loop.submit(request(3), sink, RequestOrigin{client});
    if (!id.ok()) return nullptr;
    last_id = *id;
    return sink;
  }
  void wait_for_first_step() { gate_.wait_entered(); }
  void open() {
    if (!opened_) gate_.open();
    opened_ = true;
  }

 private:
  Gate gate_;
  std::atomic<bool> held_ = false;
  bool opened_ = false;

 public:
  Status failure;               // of the first step
  std::set<uint64_t> in_steps;  // read it once the requests have ended
  std::vector<uint64_t> seats;  // the same in the order of their first steps
  uint64_t last_id = 0;
  InferenceLoop loop;
};

TEST(InferenceLoopAdmission, SeatsGoRoundByTheClientsThatFrontsName) {
  HeldLoop held({});
  std::vector<std::shared_ptr<CollectingSink>> sinks{held.submit("a")};
  held.wait_for_first_step();
  for (const char* client : {"a", "a", "b"}) sinks.push_back(held.submit(client));
  const uint64_t of_b = held.last_id;
  held.open();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->wait().end.status.ok());
  ASSERT_EQ(held.seats.size(), sinks.size());
  EXPECT_NE(held.seats.back(), of_b) << "b came last, and needs not wait for all that a has queued";
}

TEST(InferenceLoopAdmission, ARequestThatWaitsTooLongCostsNoStep) {
  const MovedClock clock;
  HeldLoop held({.seconds = 1});
  const auto first = held.submit("a");
  held.wait_for_first_step();
  const auto second = held.submit("a");
  const uint64_t late = held.last_id;
  EXPECT_GT(held.loop.queued_bytes(), 0);
  // The end does not wait for the step.
  MovedClock::advance(0.99);
  held.loop.end_late();
  ASSERT_EQ(held.loop.load().waiting, 1) << "it was ended early";
  MovedClock::advance(0.02);
  held.loop.end_late();
  ASSERT_EQ(held.loop.load().waiting, 0);
  const OutputEnd& end = second->wait().end;
  ASSERT_TRUE(end.refused.has_value());
  EXPECT_EQ(end.refused->why, NotTaken::kQueuedTooLong);
  EXPECT_EQ(end.status.code(), Code::kResourceExhausted);
  EXPECT_TRUE(second->tokens.empty());
  EXPECT_EQ(held.loop.queued_bytes(), 0);
  held.open();
  EXPECT_TRUE(first->wait().end.status.ok());
  EXPECT_FALSE(held.in_steps.contains(late));
}

TEST(InferenceLoopAdmission, OneThatIsCancelledInAStepEndsAfterIt) {
  const MovedClock clock;
  HeldLoop held({.seconds = 1});
  const auto first = held.submit("a");
  held.wait_for_first_step();
  held.loop.cancel(held.last_id);
  const auto second = held.submit("a");
  MovedClock::advance(1.01);
  held.loop.end_late();
  EXPECT_TRUE(second->wait().end.refused.has_value());
  EXPECT_FALSE(first->ended()) << "the step uses it";
  held.open();
  EXPECT_EQ(first->wait().end.finish.reason, FinishReason::kCancelled);
}

TEST(InferenceLoopAdmission, TheGreedyClientIsEvicted) {
  HeldLoop held({.requests = 5});
  std::vector<std::shared_ptr<CollectingSink>> greedy;
  for (int i = 0; i < 5; ++i) greedy.push_back(held.submit("greedy"));
  const uint64_t latest = held.last_id;
  held.wait_for_first_step();
  EXPECT_EQ(held.submit("greedy"), nullptr);
  const auto modest = held.submit("modest");
  ASSERT_NE(modest, nullptr);
  held.open();
  const OutputEnd& end = greedy.back()->wait().end;
  ASSERT_TRUE(end.refused.has_value());
  EXPECT_EQ(end.refused->why, NotTaken::kShareExceeded);
  EXPECT_TRUE(modest->wait().end.status.ok());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(greedy[static_cast<size_t>(i)]->wait().end.status.ok());
  EXPECT_FALSE(held.in_steps.contains(latest));
}

TEST(InferenceLoopAdmission, ACancelLeavesNothingQueued) {
  HeldLoop held({});
  const auto running = held.submit("a");
  held.wait_for_first_step();
  const auto waiting = held.submit("a");
  EXPECT_GT(held.loop.queued_bytes(), 0);
  held.loop.cancel(held.last_id);
  EXPECT_EQ(held.loop.queued_bytes(), 0) << "while the step still runs";
  held.open();
  EXPECT_EQ(waiting->wait().end.finish.reason, FinishReason::kCancelled);
}

TEST(InferenceLoopAdmission, NobodyIsForgottenIfTheWorkersAreLost) {
  HeldLoop held({.requests = 3});
  held.failure = Status::error(Code::kAborted, "rank 1 was killed by SIGKILL");
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(held.submit("greedy"));
  held.wait_for_first_step();
  sinks.push_back(held.submit("modest"));  // the third one is evicted for it
  ASSERT_NE(sinks.back(), nullptr);
  held.open();
  for (const auto& sink : sinks) EXPECT_FALSE(sink->wait().end.status.ok());
  EXPECT_TRUE(sinks[2]->end.refused.has_value());
  EXPECT_FALSE(sinks[3]->end.refused.has_value());
}

TEST(InferenceLoopAdmission, OwnRequestsAreTakenByAFullQueue) {
  HeldLoop held({.requests = 1});
  const auto running = held.submit("a");
  held.wait_for_first_step();
  EXPECT_EQ(held.submit("b"), nullptr);
  const auto own = std::make_shared<CollectingSink>();
  EXPECT_TRUE(held.loop.submit(request(2), own).ok());
  held.open();
  EXPECT_TRUE(own->wait().end.status.ok());
}

}  // namespace
}  // namespace shoal
