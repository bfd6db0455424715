// The class that decides whether requests are accepted, tested without clients: each answer. That
// a drain misses no request is in tests/server/intake/live_request_test.cc.
#include "server/serving/serving_state.h"

#include <gtest/gtest.h>

#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

using Accepted = Result<const ServedModel*, RefusedRequest>;

GenerationRequest asks_for(int64_t max_tokens) {
  GenerationRequest request;
  request.prompt_ids = {4, 5, 6};
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

/// Submits it as a client's, which the limits of the queue hold for.
Accepted submit(ServingState& state, GenerationRequest request,
                const std::shared_ptr<OpenRequest>& sink) {
  SHOAL_ASSIGN_OR_RETURN(ResolvedRequest resolved, state.resolve(std::move(request)));
  const RequestBook::Lock lock(*state.book());
  SHOAL_RETURN_IF_ERROR(state.refusal(lock));
  return state.submit(lock, std::move(resolved), sink, RequestOrigin{"client"});
}

class ServingStateTest : public testing::Test {
 protected:
  NotTaken why(int64_t max_tokens) {
    const Accepted accepted =
        submit(state_, asks_for(max_tokens), std::make_shared<CollectingSink>());
    EXPECT_FALSE(accepted.ok());
    return accepted.ok() ? NotTaken::kInvalid : accepted.error().why;
  }

  ServingState state_{{"oracle"}};
  const std::shared_ptr<CollectingSink> sink_ = std::make_shared<CollectingSink>();
};

TEST_F(ServingStateTest, SaysWhyItTakesNothing) {
  EXPECT_EQ(why(1), NotTaken::kLoading);
  InferenceLoop loop(test_model(), kLimits, Script{}, {}, state_.book());
  state_.set_ready(&test_model(), &loop, {});
  const Accepted accepted = submit(state_, asks_for(3), sink_);
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(*accepted, &test_model());
  EXPECT_EQ(sink_->wait().tokens.size(), 3u);

  EXPECT_EQ(why(0), NotTaken::kInvalid);
  EXPECT_EQ(submit(state_, asks_for(0), sink_).error().error.field, RequestField::kMaxTokens);

  state_.set_draining(RequestBook::Lock(*state_.book()));
  EXPECT_TRUE(state_.draining());
  EXPECT_EQ(why(1), NotTaken::kDraining);
  EXPECT_FALSE(state_.submit(asks_for(1), std::make_shared<CollectingSink>()).ok())
      << "the server's own requests too";
  state_.set_ready(&test_model(), &loop, {});
  EXPECT_EQ(why(1), NotTaken::kDraining) << "for good";
}

TEST_F(ServingStateTest, ARestartOfTheRanksOutlastsTheOrderToStop) {
  InferenceLoop loop(test_model(), kLimits, Script{}, {}, state_.book());
  state_.set_ready(&test_model(), &loop, {});
  EXPECT_FALSE(state_.set_restarting({})) << "they run";
  EXPECT_EQ(readiness(state_.view()), Readiness::kReady);
  const Status killed = Status::error(Code::kAborted, "rank 1 was killed");
  EXPECT_TRUE(state_.set_restarting(killed));
  EXPECT_FALSE(state_.set_restarting(killed)) << "that is known";
  EXPECT_EQ(readiness(state_.view()), Readiness::kWaitingForRanks);
  state_.set_stopping();
  EXPECT_EQ(readiness(state_.view()), Readiness::kDraining);
  EXPECT_EQ(why(1), NotTaken::kRestarting) << "in the time of grace too";
  EXPECT_TRUE(state_.set_restarting({}));
  EXPECT_EQ(readiness(state_.view()), Readiness::kDraining);
  EXPECT_TRUE(submit(state_, asks_for(1), sink_).ok()) << "until the grace is over";
  sink_->wait();
}

TEST_F(ServingStateTest, TellsAFullQueueFromALostEngine) {
  EngineLimits tiny = kLimits;
  tiny.max_num_seqs = 1;
  Gate gate;
  InferenceLoop loop(
      test_model(), tiny,
      [&](const StepPlan&) -> Result<StepOutcome> {
        gate.pass();
        return Status::error(Code::kAborted, "rank 1 was killed by SIGKILL");
      },
      {.queue = {.requests = 1}}, state_.book());
  state_.set_ready(&test_model(), &loop, {});
  ASSERT_TRUE(submit(state_, asks_for(5), sink_).ok());
  gate.wait_entered();
  EXPECT_EQ(why(5), NotTaken::kQueueFull);
  gate.open();
  sink_->wait();
  EXPECT_EQ(why(5), NotTaken::kEngineLost);
}

}  // namespace
}  // namespace shoal
