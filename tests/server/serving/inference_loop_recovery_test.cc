#include <atomic>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "server/serving/inference_loop.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

/// Loses the workers in the given steps. The new workers know nothing, so every sequence must be
/// sent from its start.
class ForgetfulWorkers {
 public:
  explicit ForgetfulWorkers(std::set<int> losses, bool blames_requests = true)
      : losses_(std::move(losses)), blames_requests_(blames_requests) {}

  Result<StepOutcome> operator()(const StepPlan& plan) {
    if (losses_.contains(++call_)) {
      computed_.clear();
      return StepOutcome(Status::error(Code::kAborted, "rank 1 was killed"), blames_requests_,
                         true);
    }
    for (const SequenceStep& step : plan.sequences) {
      EXPECT_EQ(step.first_position, computed_[step.id])
          << "call " << call_ << " builds on what is gone";
      computed_[step.id] += static_cast<int32_t>(step.token_ids.size());
    }
    Script script;
    script.outputs = outputs;
    script.prompt_tokens = prompt_tokens;
    return script(plan);
  }

  std::map<uint64_t, std::vector<int32_t>> outputs;
  size_t prompt_tokens = 3;

 private:
  const std::set<int> losses_;
  const bool blames_requests_;
  int call_ = 0;
  std::map<uint64_t, int32_t> computed_;
};

TEST(InferenceLoopRecoveryTest, LostWorkersCostNoTokenAndNoStream) {
  const std::vector<int32_t> ids = {40, 41, 42, 43, 44, 45, 46, 47};
  for (int lost = 1; lost <= 8; ++lost) {
    ForgetfulWorkers workers({lost});
    workers.outputs = {{1, ids}, {2, ids}};
    InferenceLoop loop(test_model(), kLimits, workers);
    const auto first = std::make_shared<CollectingSink>(),
               second = std::make_shared<CollectingSink>();
    ASSERT_TRUE(loop.submit(request(8), first).ok());
    ASSERT_TRUE(loop.submit(request(8), second).ok());
    for (const auto& sink : {first, second}) {
      EXPECT_TRUE(sink->wait().end.status.ok()) << sink->end.status.to_string();
      EXPECT_EQ(sink->tokens, ids) << "lost in step " << lost;
    }
    EXPECT_TRUE(loop.status().ok());
  }
}

TEST(InferenceLoopRecoveryTest, WhoeverAwaitsTheStepHearsWhyTheWorkersWereLost) {
  Gate gate;
  ForgetfulWorkers workers({1});
  bool entered = false;
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan& plan) {
    if (!std::exchange(entered, true)) gate.pass();
    return workers(plan);
  });
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(2), sink).ok());
  gate.wait_entered();
  std::promise<std::optional<Status>> heard;
  ASSERT_EQ(loop.await_step({}, [&](const std::optional<Status>& step) { heard.set_value(step); }),
            InferenceLoop::Awaited::kLater);
  gate.open();
  const std::optional<Status> step = heard.get_future().get();
  ASSERT_TRUE(step.has_value());
  EXPECT_NE(step->to_string().find("rank 1 was killed"), std::string::npos) << step->to_string();
  EXPECT_TRUE(sink->wait().end.status.ok());
  ASSERT_EQ(sink->losses.size(), 1u) << "so does the request itself";
  EXPECT_NE(sink->losses[0].find("rank 1 was killed"), std::string::npos) << sink->losses[0];
}

TEST(InferenceLoopRecoveryTest, WhoeverAwaitsTheStepOfACancelledRequestHearsOfItToo) {
  Gate gate;
  ForgetfulWorkers workers({1});
  bool entered = false;
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan& plan) {
    if (!std::exchange(entered, true)) gate.pass();
    return workers(plan);
  });
  const auto sink = std::make_shared<CollectingSink>();
  const uint64_t id = loop.submit(request(2), sink).value();
  gate.wait_entered();
  loop.cancel(id);
  std::promise<std::optional<Status>> heard;
  EXPECT_EQ(loop.await_step({}, [&](const std::optional<Status>& step) { heard.set_value(step); }),
            InferenceLoop::Awaited::kLater);
  gate.open();
  const std::optional<Status> step = heard.get_future().get();
  ASSERT_TRUE(step.has_value());
  EXPECT_NE(step->to_string().find("rank 1 was killed"), std::string::npos) << step->to_string();
  EXPECT_EQ(sink->wait().end.finish.reason, FinishReason::kCancelled);
}

TEST(InferenceLoopRecoveryTest, NobodyAwaitsAStepOfALoopThatHasStopped) {
  Gate gate;
  std::promise<InferenceLoop::Awaited> at_the_end;
  const auto sink = std::make_shared<CollectingSink>();
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan&) -> Result<StepOutcome> {
    gate.pass();
    return Status::error(Code::kAborted, "the ranks are lost for good");
  });
  ASSERT_TRUE(loop.submit(request(2), sink).ok());
  gate.wait_entered();
  const auto again = [&](const std::optional<Status>& step) {
    EXPECT_FALSE(step.has_value());
    at_the_end.set_value(loop.await_step({}, [](const std::optional<Status>&) {}));
  };
  ASSERT_EQ(loop.await_step({}, again), InferenceLoop::Awaited::kLater);
  gate.open();
  EXPECT_EQ(sink->wait().end.status.code(), Code::kAborted);
  EXPECT_EQ(at_the_end.get_future().get(), InferenceLoop::Awaited::kIdle)
      << "the loop's thread tells nobody any more";
  EXPECT_FALSE(loop.status().ok());
}

TEST(InferenceLoopRecoveryTest, ALoopThatHasStoppedBoastsOfNoStep) {
  Gate gate;
  std::promise<InferenceLoop::Awaited> at_the_end;
  bool first = true;
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan& plan) -> Result<StepOutcome> {
    if (std::exchange(first, false)) return Script()(plan);
    gate.pass();
    return Status::error(Code::kAborted, "the ranks are lost for good");
  });
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(2), sink).ok());
  gate.wait_entered();
  const std::chrono::milliseconds lately(std::chrono::hours(1));
  EXPECT_EQ(loop.await_step(lately, {}), InferenceLoop::Awaited::kEnded);
  const auto ask = [&](const std::optional<Status>&) {
    at_the_end.set_value(loop.await_step(lately, {}));
  };
  ASSERT_EQ(loop.await_step(std::chrono::milliseconds(-1), ask), InferenceLoop::Awaited::kLater);
  gate.open();
  EXPECT_EQ(at_the_end.get_future().get(), InferenceLoop::Awaited::kIdle);
  sink->wait();
}

TEST(InferenceLoopRecoveryTest, ARequestPresentAtTwoCrashesFailsAlone) {
  Gate gate;
  std::atomic<bool> held{false};
  ForgetfulWorkers workers({2, 3});
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan& plan) {
    auto outcome = workers(plan);
    if (!outcome->result && outcome->blames_requests && !held.exchange(true)) {
      // After the first crash another request arrives. It is present only at the second crash.
      gate.pass();
    }
    return outcome;
  });
  const auto guilty = std::make_shared<CollectingSink>(),
             innocent = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(9), guilty).ok());
  gate.wait_entered();
  ASSERT_TRUE(loop.submit(request(9), innocent).ok());
  gate.open();
  EXPECT_EQ(guilty->wait().end.status.code(), Code::kInternal);
  EXPECT_NE(guilty->end.status.to_string().find("rank 1 was killed"), std::string::npos);
  EXPECT_EQ(guilty->tokens.size(), 1u) << "what it had stands";
  EXPECT_TRUE(innocent->wait().end.status.ok()) << innocent->end.status.to_string();
  EXPECT_EQ(innocent->tokens.size(), 9u);
  EXPECT_TRUE(loop.status().ok());
}

TEST(InferenceLoopRecoveryTest, AShortageInTwoStepsIsNoCrashOfTheProgram) {
  int step = 0;
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan& plan) -> Result<StepOutcome> {
    if (++step == 1) return Script()(plan);
    return StepOutcome(Status::error(Code::kResourceExhausted, "rank 1 was refused memory")
                           .blamed_on(Fault::kShortage),
                       true, true);
  });
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(9), sink).ok());
  const Status end = sink->wait().end.status;
  EXPECT_EQ(end.code(), Code::kResourceExhausted) << end.to_string();
  EXPECT_EQ(end.fault(), Fault::kShortage);
  EXPECT_NE(end.to_string().find("rank 1 was refused memory"), std::string::npos);
}

/// How the request ends if the workers crash in its third step, and again when it has been in this
/// many good steps since. The first of them computes its tokens again.
Code end_after(int good_steps_between) {
  ForgetfulWorkers workers({3, 3 + good_steps_between + 1});
  InferenceLoop loop(test_model(), kLimits, workers);
  const auto sink = std::make_shared<CollectingSink>();
  EXPECT_TRUE(loop.submit(request(40), sink).ok());
  const Code code = sink->wait().end.status.code();
  if (code == Code::kOk) {
    EXPECT_EQ(sink->tokens.size(), 40u);
  }
  return code;
}

TEST(InferenceLoopRecoveryTest, SixteenGoodStepsForgiveACrash) {
  EXPECT_EQ(end_after(0), Code::kInternal);
  EXPECT_EQ(end_after(16), Code::kInternal);
  EXPECT_EQ(end_after(17), Code::kOk);
  EXPECT_EQ(end_after(25), Code::kOk);
}

// What a request computes again after a crash, in however many steps, says nothing about it.
TEST(InferenceLoopRecoveryTest, ALongWayBackForgivesNothing) {
  EngineLimits narrow = kLimits;
  narrow.max_num_batched_tokens = 2;
  ResolvedRequest long_one = request(40);
  long_one.engine.prompt.assign(61, 4);  // 31 steps
  for (const auto& [again, code] :
       std::vector<std::pair<int, Code>>{{36 + 31, Code::kInternal}, {36 + 33 + 17, Code::kOk}}) {
    ForgetfulWorkers workers({35, again});
    workers.prompt_tokens = long_one.engine.prompt.size();
    InferenceLoop loop(test_model(), narrow, workers);
    const auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(loop.submit(long_one, sink).ok());
    EXPECT_EQ(sink->wait().end.status.code(), code) << again << sink->end.status.to_string();
  }
}

TEST(InferenceLoopRecoveryTest, ManyCrashesFarApartCostNothing) {
  ForgetfulWorkers workers({2, 20, 38, 56});
  InferenceLoop loop(test_model(), kLimits, workers);
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(60), sink).ok());
  EXPECT_TRUE(sink->wait().end.status.ok()) << sink->end.status.to_string();
  EXPECT_EQ(sink->tokens.size(), 60u);
}

TEST(InferenceLoopRecoveryTest, LossesThatBlameNoRequestAreNobodysFault) {
  ForgetfulWorkers workers({2, 3, 4, 6}, false);
  InferenceLoop loop(test_model(), kLimits, workers);
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(9), sink).ok());
  EXPECT_TRUE(sink->wait().end.status.ok()) << sink->end.status.to_string();
  EXPECT_EQ(sink->tokens.size(), 9u);
}

}  // namespace
}  // namespace shoal
