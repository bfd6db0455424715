// What can happen to a request at the same time as its submission: its client goes, its call ends,
// and output comes before submit() returns.
#include "server/intake/live_request.h"

#include <atomic>
#include <future>
#include <gtest/gtest.h>
#include <thread>

#include "tests/guard.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

/// Takes the output whenever there is some, as a front does.
class TakingCall final : public FrontCall {
 public:
  void read() override { ++reads; }
  uint64_t received() override { return 0; }
  void work() override {}
  void reject(const RefusedRequest&) override {}
  void output_ready() override {
    if (request == nullptr) return;
    LiveRequest::Output output = request->take();
    for (const OutputDelta& delta : output.deltas) tokens += delta.tokens.size();
    if (!output.end) return;
    EXPECT_FALSE(ended.exchange(true)) << "a second end";
    end = *output.end;
    promise.set_value();
  }
  void drop_if_slow(std::chrono::milliseconds) override {}

  LiveRequest* request = nullptr;
  int reads = 0;
  size_t tokens = 0;
  std::atomic<bool> ended = false;
  OutputEnd end;
  std::promise<void> promise;
};

class LiveRequestTest : public testing::Test {
 protected:
  LiveRequestTest() : loop_(test_model(), kLimits, Script{}, {}, state_->book()) {
    state_->set_ready(&test_model(), &loop_, {});
    intake_->enter(call_, "client");
  }
  void TearDown() override {
    intake_->leave(*call_);
    EXPECT_TRUE(loop_.drain(Deadline::after_ms(kGuardMs))) << "its thread may still hold the call";
    EXPECT_EQ(call_.use_count(), 1) << "leave() lets go of the call";
    EXPECT_EQ(intake_.use_count(), 1) << "and of its requests";
    EXPECT_EQ(loop_.load().used_kv_blocks, 0);
  }

  std::shared_ptr<LiveRequest> make(const std::string& id) {
    auto request = LiveRequest::make(intake_, id, call_);
    call_->request = request.get();
    return request;
  }
  static GenerationRequest asks_for(int64_t max_tokens) {
    GenerationRequest request;
    request.prompt_ids = {4, 5, 6};
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
  }

  const std::shared_ptr<ServingState> state_ =
      std::make_shared<ServingState>(std::vector<std::string>{"letters"});
  const std::shared_ptr<Intake> intake_ = std::make_shared<Intake>(Intake::Options{}, state_);
  InferenceLoop loop_;
  const std::shared_ptr<TakingCall> call_ = std::make_shared<TakingCall>();
};

TEST_F(LiveRequestTest, PassesTheOutputOnAndFreesTheId) {
  const auto request = make("a");
  const auto taken = request->submit(asks_for(5), {"client"});
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(taken->prompt_ids, (std::vector<int32_t>{4, 5, 6}));
  call_->promise.get_future().wait();
  EXPECT_EQ(call_->tokens, 5u);
  EXPECT_EQ(call_->end.finish.reason, FinishReason::kLength);
  EXPECT_EQ(request->untaken_bytes(), 0u);
  request->release_id();
  EXPECT_EQ(intake_->abort("a"), Intake::AbortOutcome::kFinished);
}

TEST_F(LiveRequestTest, CountsWhatNobodyTakes) {
  const auto request = make("a");
  call_->request = nullptr;
  ASSERT_TRUE(request->submit(asks_for(5), {"client"}).ok());
  EXPECT_TRUE(loop_.drain(Deadline::after_ms(kGuardMs)));
  EXPECT_GE(request->untaken_bytes(), 5 * sizeof(SampledToken));
  EXPECT_GT(intake_->counted_bytes(), 0u);
  intake_->leave(*call_);
  EXPECT_EQ(intake_->counted_bytes(), 0u);
  request->on_delta({});
  EXPECT_EQ(request->take().deltas.size(), 5u) << "nothing is added once it is over";
}

TEST_F(LiveRequestTest, WhoeverHasLeftIsNotSubmitted) {
  const auto request = make("a"), given_up = LiveRequest::make(intake_, "b", call_);
  given_up->give_up();
  EXPECT_EQ(given_up->submit(asks_for(100), {"client"}).error().code(), Code::kCancelled);
  intake_->leave(*call_);
  EXPECT_TRUE(request->given_up());
  EXPECT_EQ(request->submit(asks_for(100), {"client"}).error().code(), Code::kCancelled);
  EXPECT_EQ(intake_->abort("a"), Intake::AbortOutcome::kUnknown) << "nobody has had this id";
  EXPECT_TRUE(LiveRequest::make(intake_, "c", call_)->given_up()) << "its call has left";
  EXPECT_EQ(loop_.load().running + loop_.load().waiting, 0);
}

TEST_F(LiveRequestTest, TheRequestsOfACallCountTogether) {
  constexpr size_t kBody = 100'000;
  intake_->arrived(*call_, kBody);
  const auto first = LiveRequest::make(intake_, "a", call_),
             second = LiveRequest::make(intake_, "b", call_);
  ASSERT_TRUE(first->submit(asks_for(100), {"client"}).ok());
  EXPECT_EQ(intake_->counted_bytes(), kBody) << "its call has the rest of it still";
  EXPECT_EQ(LiveRequest::make(intake_, "a", call_)->submit(asks_for(1), {"client"}).error().why,
            NotTaken::kIdInUse);
  intake_->leave(*call_);
  EXPECT_EQ(intake_->counted_bytes(), 0u);
  EXPECT_TRUE(intake_->wait_until_empty(Deadline::after_ms(0)));
  EXPECT_EQ(intake_->abort("a"), Intake::AbortOutcome::kFinished) << "it was free at once";
}

TEST_F(LiveRequestTest, AnAcceptedRequestMakesRoomForAnother) {
  const auto narrow = std::make_shared<Intake>(
      Intake::Options{.budget_bytes = 2 * kMaxRequestBytes + 10'000}, state_);
  const auto call = std::make_shared<TakingCall>(), other = std::make_shared<TakingCall>(),
             third = std::make_shared<TakingCall>();
  narrow->enter(call, "one");
  narrow->enter(other, "other");
  narrow->enter(third, "third");
  EXPECT_EQ(third->reads, 0);
  const auto request = LiveRequest::make(narrow, "a", call);
  ASSERT_TRUE(request->submit(asks_for(5), {"one"}).ok());
  EXPECT_EQ(third->reads, 1) << "it takes little now";
  for (const auto& one : {call, other, third}) narrow->leave(*one);
}

TEST_F(LiveRequestTest, ClientsThatGoAtAnyMomentLeaveNothing) {
  for (int i = 0; i < 200; ++i) {
    const auto call = std::make_shared<TakingCall>();
    intake_->enter(call, "client");
    const auto request = LiveRequest::make(intake_, cat("r", i), call);
    std::thread client([&, i] {
      if (i % 2 == 0) std::this_thread::yield();
      if (i % 4 < 2) request->give_up();
      intake_->leave(*call);
    });
    (void)request->submit(asks_for(50), {"client"});
    client.join();
  }
  intake_->leave(*call_);
  EXPECT_EQ(intake_->counted_bytes(), 0u);
  EXPECT_TRUE(intake_->wait_until_empty(Deadline::after_ms(0)));
}

TEST_F(LiveRequestTest, NothingIsAcceptedAfterADrainHasBegun) {
  for (int round = 0; round < 50; ++round) {
    const auto state = std::make_shared<ServingState>(std::vector<std::string>{"letters"});
    const auto intake = std::make_shared<Intake>(Intake::Options{}, state);
    InferenceLoop loop(test_model(), kLimits, Script{}, {}, state->book());
    state->set_ready(&test_model(), &loop, {});
    std::atomic<int> accepted = 0;
    const auto submit_until_drained = [&](const std::string& client) {
      std::vector<std::shared_ptr<TakingCall>> calls;
      for (bool draining = false; !draining;) {
        calls.push_back(std::make_shared<TakingCall>());
        intake->enter(calls.back(), client, 1);
        const auto request = LiveRequest::make(intake, cat(client, calls.size()), calls.back());
        const auto result = request->submit(asks_for(2), {client});
        if (result.ok()) ++accepted;
        draining = !result.ok() && result.error().why == NotTaken::kDraining;
      }
      for (const auto& call : calls) intake->leave(*call);
    };
    std::thread one(submit_until_drained, "one"), other(submit_until_drained, "other");
    while (accepted < 3) std::this_thread::yield();
    intake->drain();
    // Every accepted request has ended then, even if its client's thread has not returned from
    // submit() yet.
    EXPECT_TRUE(loop.drain(Deadline::infinite()));
    EXPECT_EQ(loop.load().running + loop.load().waiting, 0);
    one.join();
    other.join();
    EXPECT_EQ(loop.load().running + loop.load().waiting, 0) << "nothing came after the drain";
  }
}

}  // namespace
}  // namespace shoal
