// What can happen to a request at the same time as its submission: its client goes, its call ends,
// and output comes before submit() returns.
#include "server/serving/live_request.h"

#include <atomic>
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
  void read() override {}
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
  void drop_if_slow(std::chrono::milliseconds) override { ++slow; }

  LiveRequest* request = nullptr;
  size_t tokens = 0;
  int slow = 0;
  std::atomic<bool> ended = false;
  OutputEnd end;
  std::promise<void> promise;
};

class LiveRequestTest : public testing::Test {
 protected:
  LiveRequestTest() : loop_(test_model(), kLimits, Script{}) {
    state_->set_ready(&test_model(), &loop_, {});
  }

  std::shared_ptr<LiveRequest> make(const std::string& id) {
    auto request = std::make_shared<LiveRequest>(state_, id, call_);
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
  EXPECT_EQ(state_->abort("a"), ServingState::AbortOutcome::kFinished);
  request->leave();
  EXPECT_TRUE(state_->wait_until_idle(Deadline::after_ms(0)));
  EXPECT_TRUE(loop_.drain(Deadline::after_ms(kGuardMs))) << "its thread may still hold the call";
  EXPECT_EQ(call_.use_count(), 1) << "leave() lets go of the call";
}

TEST_F(LiveRequestTest, CountsWhatNobodyTakes) {
  const auto request = make("a");
  call_->request = nullptr;
  ASSERT_TRUE(request->submit(asks_for(5), {"client"}).ok());
  EXPECT_TRUE(loop_.drain(Deadline::after_ms(kGuardMs)));
  EXPECT_GE(request->untaken_bytes(), 5 * sizeof(SampledToken));
  state_->drop_slow_readers(std::chrono::milliseconds(1));
  EXPECT_EQ(call_->slow, 1);
  request->leave();
  request->on_delta({});
  EXPECT_EQ(request->take().deltas.size(), 5u) << "nothing is added once it is over";
}

TEST_F(LiveRequestTest, ACallThatEndsBeforeItsSubmissionLeavesNothing) {
  const auto request = make("a");
  call_->request = nullptr;
  request->give_up();
  request->leave();
  const auto taken = request->submit(asks_for(100), {"client"});
  EXPECT_TRUE(loop_.drain(Deadline::after_ms(kGuardMs)));
  EXPECT_TRUE(state_->wait_until_idle(Deadline::after_ms(0))) << taken.ok();
}

TEST_F(LiveRequestTest, ClientsThatGoAtAnyMomentLeaveNothing) {
  for (int i = 0; i < 200; ++i) {
    const auto request = std::make_shared<LiveRequest>(state_, cat("r", i), call_);
    std::thread client([&request, i] {
      if (i % 2 == 0) std::this_thread::yield();
      request->give_up();
      request->leave();
    });
    (void)request->submit(asks_for(50), {"client"});
    client.join();
  }
  EXPECT_TRUE(loop_.drain(Deadline::after_ms(kGuardMs)));
  EXPECT_TRUE(state_->wait_until_idle(Deadline::after_ms(0)));
  EXPECT_EQ(loop_.load().used_kv_blocks, 0);
  EXPECT_EQ(call_.use_count(), 1);
}

}  // namespace
}  // namespace shoal
