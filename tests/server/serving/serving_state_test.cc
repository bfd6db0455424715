// The class that decides whether requests are accepted, tested without gRPC: each answer, and that
// a drain misses no request.
#include "server/serving/serving_state.h"

#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

using Accepted = Result<ServingState::Accepted, RefusedRequest>;

/// A client's call that only collects what it gets.
class CollectingCall final : public LiveCall {
 public:
  void on_delta(OutputDelta delta) override { collected.on_delta(std::move(delta)); }
  void on_end(OutputEnd end) override { collected.on_end(std::move(end)); }
  void drop_slow_reader(std::chrono::milliseconds) override {}
  CollectingSink collected;
};

GenerationRequest asks_for(int64_t max_tokens) {
  GenerationRequest request;
  request.prompt_ids = {4, 5, 6};
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

class ServingStateTest : public testing::Test {
 protected:
  Accepted submit(const std::string& id, GenerationRequest request,
                  std::shared_ptr<CollectingCall> call = std::make_shared<CollectingCall>()) {
    return state_.submit(id, std::move(request), std::move(call), {"client"});
  }
  NotTaken why(const std::string& id, GenerationRequest request) {
    const Accepted accepted = submit(id, std::move(request));
    EXPECT_FALSE(accepted.ok());
    return accepted.error().why;
  }

  ServingState state_{{"oracle"}};
};

TEST_F(ServingStateTest, SaysWhyItTakesNothing) {
  EXPECT_EQ(why("a", asks_for(1)), NotTaken::kLoading);
  InferenceLoop loop(test_model(), kLimits, Script{});
  state_.set_ready(&test_model(), &loop, {});
  const auto call = std::make_shared<CollectingCall>();
  const Accepted accepted = submit("a", asks_for(3), call);
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(accepted->model, &test_model());
  EXPECT_EQ(call->collected.wait().tokens.size(), 3u);
  state_.leave("a", call.get());

  EXPECT_EQ(why("a", asks_for(0)), NotTaken::kInvalid);
  EXPECT_EQ(submit("a", asks_for(0)).error().error.field, RequestField::kMaxTokens);
  for (const char* id : {"a\n", "\u009b31m", "a\u2028b", "\u2029"})
    EXPECT_EQ(submit(id, asks_for(1)).error().error.field, RequestField::kRequestId) << id;
  EXPECT_EQ(submit(std::string(257, 'a'), asks_for(1)).error().error.field,
            RequestField::kRequestId);

  state_.set_draining();
  EXPECT_TRUE(state_.draining());
  EXPECT_EQ(why("a", asks_for(1)), NotTaken::kDraining);
  EXPECT_FALSE(state_.submit(asks_for(1), std::make_shared<CollectingSink>()).ok())
      << "the server's own requests too";
  state_.set_ready(&test_model(), &loop, {});
  EXPECT_EQ(why("a", asks_for(1)), NotTaken::kDraining) << "for good";
}

TEST_F(ServingStateTest, AnIdIsInUseUntilItsCallEnds) {
  Gate gate;
  std::atomic<bool> held = false;
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan& plan) -> Result<StepOutcome> {
    if (!held.exchange(true)) gate.pass();
    return Script{}(plan);
  });
  state_.set_ready(&test_model(), &loop, {});
  const auto first = std::make_shared<CollectingCall>();
  ASSERT_TRUE(submit("a", asks_for(1), first).ok());
  gate.wait_entered();
  const auto second = std::make_shared<CollectingCall>();
  EXPECT_EQ(submit("a", asks_for(1), second).error().why, NotTaken::kIdInUse);
  EXPECT_EQ(second.use_count(), 1) << "nothing of it is kept";
  state_.leave("a", second.get());
  EXPECT_FALSE(state_.wait_until_idle(Deadline::after_ms(0))) << "the first one is not touched";
  EXPECT_EQ(state_.abort("a"), ServingState::AbortOutcome::kAborted);
  EXPECT_EQ(state_.abort("b"), ServingState::AbortOutcome::kUnknown);
  gate.open();
  first->collected.wait();
  state_.release_id("a", first.get());
  EXPECT_EQ(state_.abort("a"), ServingState::AbortOutcome::kFinished);
  state_.leave("a", first.get());
  EXPECT_TRUE(state_.wait_until_idle(Deadline::after_ms(0)));
  EXPECT_TRUE(submit("a", asks_for(1)).ok());
  EXPECT_TRUE(loop.drain(Deadline::infinite()));
}

TEST_F(ServingStateTest, AnAbortSaysWhetherItEndedTheRequest) {
  InferenceLoop loop(test_model(), kLimits, Script{});
  state_.set_ready(&test_model(), &loop, {});
  const auto first = std::make_shared<CollectingCall>();
  ASSERT_TRUE(submit("a", asks_for(1), first).ok());
  first->collected.wait();
  EXPECT_EQ(state_.abort("a"), ServingState::AbortOutcome::kFinished)
      << "it has ended by itself, although its client does not know it yet";
  EXPECT_EQ(state_.abort_all(), 0);
  EXPECT_EQ(first->collected.end.finish.reason, FinishReason::kLength);
  state_.release_id("a", first.get());

  const auto second = std::make_shared<CollectingCall>();
  ASSERT_TRUE(submit("a", asks_for(190), second).ok());
  state_.leave("a", first.get());
  const ServingState::AbortOutcome outcome = state_.abort("a");
  const FinishReason reason = second->collected.wait().end.finish.reason;
  EXPECT_EQ(outcome == ServingState::AbortOutcome::kAborted, reason == FinishReason::kCancelled)
      << "the one that has the id now, whose call the first one did not take along";
  state_.leave("a", second.get());
  EXPECT_TRUE(state_.wait_until_idle(Deadline::after_ms(0)));
}

TEST_F(ServingStateTest, ARestartOfTheRanksOutlastsTheOrderToStop) {
  InferenceLoop loop(test_model(), kLimits, Script{});
  state_.set_ready(&test_model(), &loop, {});
  EXPECT_FALSE(state_.set_restarting({})) << "they run";
  EXPECT_EQ(readiness(state_.view()), Readiness::kReady);
  const Status killed = Status::error(Code::kAborted, "rank 1 was killed");
  EXPECT_TRUE(state_.set_restarting(killed));
  EXPECT_FALSE(state_.set_restarting(killed)) << "that is known";
  EXPECT_EQ(readiness(state_.view()), Readiness::kWaitingForRanks);
  state_.set_stopping();
  EXPECT_EQ(readiness(state_.view()), Readiness::kDraining);
  EXPECT_EQ(why("a", asks_for(1)), NotTaken::kRestarting) << "in the time of grace too";
  EXPECT_TRUE(state_.set_restarting({}));
  EXPECT_EQ(readiness(state_.view()), Readiness::kDraining);
  const auto call = std::make_shared<CollectingCall>();
  EXPECT_TRUE(submit("a", asks_for(1), call).ok()) << "until the grace is over";
  call->collected.wait();
}

TEST_F(ServingStateTest, TellsAFullQueueFromALostEngine) {
  EngineLimits tiny = kLimits;
  tiny.max_num_seqs = 1;
  Gate gate;
  InferenceLoop loop(test_model(), tiny,
                     [&](const StepPlan&) -> Result<StepOutcome> {
                       gate.pass();
                       return Status::error(Code::kAborted, "rank 1 was killed by SIGKILL");
                     },
                     {.queue = {.requests = 1}});
  state_.set_ready(&test_model(), &loop, {});
  const auto first = std::make_shared<CollectingCall>();
  ASSERT_TRUE(submit("a", asks_for(5), first).ok());
  gate.wait_entered();
  EXPECT_EQ(why("b", asks_for(5)), NotTaken::kQueueFull);
  gate.open();
  first->collected.wait();
  EXPECT_EQ(why("b", asks_for(5)), NotTaken::kEngineLost);
}

TEST_F(ServingStateTest, NothingIsTakenAfterADrainHasBegun) {
  for (int round = 0; round < 50; ++round) {
    ServingState state({"oracle"});
    InferenceLoop loop(test_model(), kLimits, Script{});
    state.set_ready(&test_model(), &loop, {});
    std::atomic<int> taken = 0;
    std::vector<std::shared_ptr<CollectingCall>> calls[2];
    std::vector<std::thread> clients;
    for (auto& mine : calls) {
      clients.emplace_back([&state, &taken, &mine] {
        for (;;) {
          auto call = std::make_shared<CollectingCall>();
          const std::string id = cat(static_cast<const void*>(call.get()));
          const Accepted result = state.submit(id, asks_for(2), call, {"client"});
          if (!result.ok() && result.error().why == NotTaken::kDraining) return;
          if (!result.ok()) continue;  // the queue is full
          ++taken;
          mine.push_back(std::move(call));
        }
      });
    }
    while (taken < 3) std::this_thread::yield();
    state.set_draining();
    EXPECT_TRUE(loop.drain(Deadline::infinite()));
    // Every accepted request has ended, even if its client's thread has not returned from submit()
    // yet.
    EXPECT_EQ(loop.load().running + loop.load().waiting, 0);
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(loop.load().running + loop.load().waiting, 0) << "nothing came after the drain";
    for (const auto& mine : calls) {
      for (const auto& call : mine) {
        EXPECT_EQ(call->collected.wait().tokens.size(), 2u);
        EXPECT_TRUE(call->collected.end.status.ok());
      }
    }
  }
}

}  // namespace
}  // namespace shoal
