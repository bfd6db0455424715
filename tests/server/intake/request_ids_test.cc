// Which ids are in use, and what an abort by id does. The calls only collect their output.
#include "server/intake/request_ids.h"

#include <atomic>
#include <gtest/gtest.h>
#include <vector>

#include "server/intake/live_request.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

class CollectingCall final : public FrontCall {
 public:
  void output_ready() override {
    LiveRequest::Output output = request->take();
    for (OutputDelta& delta : output.deltas) collected.on_delta(std::move(delta));
    if (output.end) collected.on_end(std::move(*output.end));
  }
  void read() override {}
  uint64_t received() override { return 0; }
  void work() override {}
  void reject(const RefusedRequest&) override {}
  void drop_if_slow(std::chrono::milliseconds) override {}

  std::shared_ptr<LiveRequest> request;
  CollectingSink collected;
};

class RequestIdsTest : public testing::Test {
 protected:
  /// A call and its request know each other until the call has left.
  void TearDown() override {
    for (const auto& call : calls_) intake_->leave(*call);
  }
  std::shared_ptr<CollectingCall> make(const std::string& id) {
    calls_.push_back(std::make_shared<CollectingCall>());
    intake_->enter(calls_.back(), "client");
    calls_.back()->request = LiveRequest::make(intake_, id, calls_.back());
    return calls_.back();
  }
  static Result<LiveRequest::Accepted, RefusedRequest> submit(CollectingCall& call,
                                                              int64_t max_tokens) {
    GenerationRequest request;
    request.prompt_ids = {4, 5, 6};
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return call.request->submit(std::move(request), {"client"});
  }

  const std::shared_ptr<ServingState> state_ =
      std::make_shared<ServingState>(std::vector<std::string>{"oracle"});
  const std::shared_ptr<Intake> intake_ = std::make_shared<Intake>(Intake::Options{}, state_);
  std::vector<std::shared_ptr<CollectingCall>> calls_;
};

TEST_F(RequestIdsTest, AreText) {
  for (const std::string& id :
       {std::string("a\n"), std::string("\u009b31m"), std::string("a\u2028b"),
        std::string("\u2029"), std::string(257, 'a')})
    EXPECT_EQ(submit(*make(id), 1).error().error.field, RequestField::kRequestId) << id;
  EXPECT_TRUE(RequestIds::check(std::string(256, 'a')).ok());
}

TEST_F(RequestIdsTest, AreInUseUntilTheirCallsLeave) {
  Gate gate;
  std::atomic<bool> held = false;
  InferenceLoop loop(
      test_model(), kLimits,
      [&](const StepPlan& plan) -> Result<StepOutcome> {
        if (!held.exchange(true)) gate.pass();
        return Script{}(plan);
      },
      {}, state_->book());
  state_->set_ready(&test_model(), &loop, {});
  const auto first = make("a"), second = make("a");
  ASSERT_TRUE(submit(*first, 1).ok());
  gate.wait_entered();
  EXPECT_EQ(submit(*second, 1).error().why, NotTaken::kIdInUse);
  intake_->leave(*second);
  EXPECT_EQ(intake_->abort("a"), Intake::AbortOutcome::kAborted) << "the first one is not touched";
  EXPECT_EQ(intake_->abort("b"), Intake::AbortOutcome::kUnknown);
  gate.open();
  first->collected.wait();
  first->request->release_id();
  EXPECT_EQ(intake_->abort("a"), Intake::AbortOutcome::kFinished);
  intake_->leave(*first);
  EXPECT_TRUE(submit(*make("a"), 1).ok());
  EXPECT_TRUE(loop.drain(Deadline::infinite()));
}

TEST_F(RequestIdsTest, AnAbortSaysWhetherItEndedTheRequest) {
  InferenceLoop loop(test_model(), kLimits, Script{}, {}, state_->book());
  state_->set_ready(&test_model(), &loop, {});
  const auto first = make("a");
  ASSERT_TRUE(submit(*first, 1).ok());
  first->collected.wait();
  EXPECT_EQ(intake_->abort("a"), Intake::AbortOutcome::kFinished)
      << "it has ended by itself, although its client does not know it yet";
  EXPECT_EQ(intake_->abort_all(), 0);
  EXPECT_EQ(first->collected.end.finish.reason, FinishReason::kLength);
  first->request->release_id();

  const auto second = make("a");
  ASSERT_TRUE(submit(*second, 190).ok());
  intake_->leave(*first);
  const Intake::AbortOutcome outcome = intake_->abort("a");
  const FinishReason reason = second->collected.wait().end.finish.reason;
  EXPECT_EQ(outcome == Intake::AbortOutcome::kAborted, reason == FinishReason::kCancelled)
      << "the one that has the id now, whose call the first one did not take along";
  intake_->leave(*second);
}

}  // namespace
}  // namespace shoal
