#include "server/serving/inference_loop.h"

#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include "tests/moved_clock.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

/// Limits for requests that would run for minutes if they were not ended.
constexpr EngineLimits kEndless = {
    .max_num_seqs = 8, .max_num_batched_tokens = 64, .kv_blocks = 10'000, .max_model_len = 150'000};

const RequestOrigin kClient{"client"};

Result<StepOutcome> unhurried(const StepPlan& plan) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return Script{}(plan);
}

TEST(InferenceLoopTest, StreamsEveryTokenAndTheText) {
  const std::string text = "One shoal of fish. \xF0\x9F\x90\x9F\xF0\x9F\x90\x9F";
  std::vector<int32_t> ids = byte_ids_of_text(text);
  ids.push_back(1);  // <|end|>
  InferenceLoop loop(test_model(), kLimits, Script{.outputs = {{1, ids}}});
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_EQ(loop.submit(request(100), sink).value(), 1u);
  sink->wait();
  EXPECT_EQ(sink->tokens, ids);
  EXPECT_EQ(sink->text(), text);
  EXPECT_EQ(sink->texts.size(), ids.size()) << "one delta per step, empty ones too";
  EXPECT_TRUE(sink->end.status.ok());
  EXPECT_EQ(sink->end.finish.reason, FinishReason::kStop);
  EXPECT_TRUE(sink->end.finish.stopped_by_eos);
  EXPECT_EQ(sink->end.finish.stop_token_id, 1);
  EXPECT_EQ(sink->end.prompt_tokens, 3);
  EXPECT_EQ(sink->end.completion_tokens, static_cast<int32_t>(ids.size()));
  EXPECT_EQ(loop.load().used_kv_blocks, 0);
}

TEST(InferenceLoopTest, StopStringEndsTheSequenceAtThatStep) {
  const std::vector<int32_t> ids = byte_ids_of_text("one STOP two");
  InferenceLoop loop(test_model(), kLimits, Script{.outputs = {{1, ids}, {2, ids}}});
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(100, {"STOP"}), sink).ok());
  sink->wait();
  EXPECT_EQ(sink->text(), "one ");
  EXPECT_EQ(sink->tokens, std::vector<int32_t>(ids.begin(), ids.begin() + 8))
      << "the match's own ids included";
  EXPECT_EQ(sink->end.finish.reason, FinishReason::kStop);
  EXPECT_EQ(sink->end.stop_text, "STOP");
  EXPECT_EQ(sink->end.finish.stop_token_id, -1);
  EXPECT_EQ(sink->end.completion_tokens, 8);
  EXPECT_EQ(loop.load().used_kv_blocks, 0) << "free before the end is told";

  const auto including = std::make_shared<CollectingSink>();
  ResolvedRequest include = request(100, {"STOP"});
  include.include_stop_in_output = true;
  ASSERT_TRUE(loop.submit(include, including).ok());
  EXPECT_EQ(including->wait().text(), "one STOP");
}

TEST(InferenceLoopTest, StopTokenLeavesTheTextUnlessIncluded) {
  const std::vector<int32_t> ids = byte_ids_of_text("ab!");
  InferenceLoop loop(test_model(), kLimits, Script{.outputs = {{1, ids}, {2, ids}}});
  for (const bool include : {false, true}) {
    ResolvedRequest resolved = request(100);
    resolved.engine.stop_token_ids = {ids.back()};
    resolved.include_stop_in_output = include;
    const auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(loop.submit(resolved, sink).ok());
    sink->wait();
    EXPECT_EQ(sink->text(), include ? "ab!" : "ab");
    EXPECT_EQ(sink->tokens, ids);
    EXPECT_EQ(sink->end.finish.stop_token_id, ids.back());
    EXPECT_FALSE(sink->end.finish.stopped_by_eos);
  }
}

TEST(InferenceLoopTest, HeldBackTextComesWithTheLastToken) {
  InferenceLoop loop(test_model(), kLimits, Script{.outputs = {{1, byte_ids_of_text("abcST")}}});
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(5, {"STOP"}), sink).ok());
  sink->wait();
  EXPECT_EQ(sink->texts, (std::vector<std::string>{"a", "b", "c", "", "ST"}));
  EXPECT_EQ(sink->end.finish.reason, FinishReason::kLength);
  EXPECT_EQ(sink->end.stop_text, "");
}

TEST(InferenceLoopTest, RequestsOfOneBatchDoNotMix) {
  Script script;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t id = 1; id <= 30; ++id)
    script.outputs[id] = byte_ids_of_text("request " + std::to_string(id));
  for (auto& [id, ids] : script.outputs) ids.push_back(1);
  EngineLimits tight = kLimits;
  tight.kv_blocks = 13;
  tight.max_num_batched_tokens = 11;
  InferenceLoop loop(test_model(), tight, script);
  for (uint64_t id = 1; id <= 30; ++id) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_EQ(loop.submit(request(100), sinks.back()).value(), id);
  }
  for (uint64_t id = 1; id <= 30; ++id) {
    EXPECT_EQ(sinks[id - 1]->wait().text(), "request " + std::to_string(id));
  }
}

TEST(InferenceLoopTest, ALongPromptTakesManyStepsBesideAStream) {
  // Each token of a prompt takes as long as a quarter of a step without any.
  const MovedClock clock;
  std::atomic<int> steps_with_both = 0;
  const auto machine = [&](const StepPlan& plan) -> Result<StepOutcome> {
    size_t tokens = 0;
    for (const SequenceStep& step : plan.sequences) tokens += step.token_ids.size();
    if (plan.sequences.size() > 1 && tokens > 2) ++steps_with_both;
    MovedClock::advance(0.012 + 0.003 * static_cast<double>(tokens));
    return Script{}(plan);
  };
  for (const double stretch : {0.0, 2.0}) {
    InferenceLoop loop(test_model(), kEndless, machine,
                       {.pace = {.decode_stretch = stretch, .max_step_s = 10}});
    const auto stream = std::make_shared<CollectingSink>();
    const auto prompt = std::make_shared<CollectingSink>();
    ResolvedRequest long_one = request(1);
    long_one.engine.prompt.assign(200, 4);
    stream->after_delta = [&] {
      if (stream->tokens.size() != 10) return;
      EXPECT_TRUE(loop.submit(long_one, prompt).ok());
    };
    const uint64_t id = loop.submit(request(100'000), stream).value();
    prompt->wait();
    loop.cancel(id);
    stream->wait();
    if (stretch == 0) {
      EXPECT_LE(steps_with_both.exchange(0), 8);
    } else {
      EXPECT_GE(steps_with_both, 12);
    }
  }
}

TEST(InferenceLoopTest, CancelEndsAtTheNextBoundary) {
  InferenceLoop loop(test_model(), kEndless, unhurried);
  const auto sink = std::make_shared<CollectingSink>();
  std::atomic<uint64_t> id = 0;
  sink->after_delta = [&] {
    if (sink->tokens.size() >= 5 && id != 0)
      loop.cancel(id);  // called from inside a callback, so no lock may be held
  };
  id = loop.submit(request(100'000), sink).value();
  sink->wait();
  EXPECT_TRUE(sink->end.status.ok());
  EXPECT_EQ(sink->end.finish.reason, FinishReason::kCancelled);
  EXPECT_GE(sink->tokens.size(), 5u);
  EXPECT_EQ(sink->end.completion_tokens, static_cast<int32_t>(sink->tokens.size()));
  EXPECT_EQ(loop.load().used_kv_blocks, 0);
  loop.cancel(id);
  loop.cancel(12345);
}

TEST(InferenceLoopTest, ASinkMayCancelAnotherRequestOfItsStep) {
  InferenceLoop loop(test_model(), kEndless, unhurried);
  const auto cancels = std::make_shared<CollectingSink>(),
             other = std::make_shared<CollectingSink>();
  std::atomic<uint64_t> id = 0;
  cancels->after_delta = [&] {
    // The other one's token of this step has not been handed out yet, or was just now.
    if (other->tokens.size() >= 5) loop.cancel(id);
  };
  const uint64_t first = loop.submit(request(100'000), cancels).value();
  id = loop.submit(request(100'000), other).value();
  other->wait();
  loop.cancel(first);
  cancels->wait();
  EXPECT_EQ(other->end.finish.reason, FinishReason::kCancelled);
  EXPECT_GE(other->tokens.size(), 5u);
  EXPECT_EQ(other->end.completion_tokens, static_cast<int32_t>(other->tokens.size()));
  EXPECT_EQ(loop.load().used_kv_blocks, 0);
}

TEST(InferenceLoopTest, CancelOfAWaitingRequest) {
  Gate gate;
  EngineLimits one = kLimits;
  one.max_num_seqs = 1;
  std::atomic<bool> held = false;
  InferenceLoop loop(test_model(), one,
                     [&](const StepPlan& plan) -> Result<StepOutcome> {
                       if (!held.exchange(true)) gate.pass();
                       return Script{}(plan);
                     },
                     {.queue = {.requests = 2}});
  const auto running = std::make_shared<CollectingSink>();
  const auto waiting = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(3), running, kClient).ok());
  gate.wait_entered();
  const uint64_t id = loop.submit(request(3), waiting, kClient).value();
  const auto next = std::make_shared<CollectingSink>();
  EXPECT_EQ(loop.submit(request(3), next, kClient).error().code(), Code::kResourceExhausted);
  loop.cancel(id);
  EXPECT_TRUE(loop.submit(request(3), next, kClient).ok())
      << "the place is free while the step still runs";
  gate.open();
  EXPECT_EQ(next->wait().end.finish.reason, FinishReason::kLength);
  EXPECT_EQ(waiting->wait().end.finish.reason, FinishReason::kCancelled);
  EXPECT_TRUE(waiting->tokens.empty());
  EXPECT_EQ(running->wait().end.finish.reason, FinishReason::kLength);
}

TEST(InferenceLoopTest, FullQueueIsRefusedAndTheSinkNeverCalled) {
  EngineLimits tiny = kLimits;
  tiny.max_num_seqs = 1;
  Gate gate;
  std::atomic<bool> held = false;
  InferenceLoop loop(test_model(), tiny,
                     [&](const StepPlan& plan) -> Result<StepOutcome> {
                       if (!held.exchange(true)) gate.pass();
                       return Script{}(plan);
                     },
                     {.queue = {.requests = 1}});
  const auto first = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(2), first, kClient).ok());
  gate.wait_entered();
  const auto second = std::make_shared<CollectingSink>();
  EXPECT_EQ(loop.submit(request(2), second, kClient).error().code(), Code::kResourceExhausted);
  EXPECT_EQ(second.use_count(), 1);
  gate.open();
  first->wait();
}

TEST(InferenceLoopTest, FailedStepEndsEveryRequestWithItsStatus) {
  Gate gate;
  InferenceLoop loop(test_model(), kLimits, [&](const StepPlan&) -> Result<StepOutcome> {
    gate.pass();
    return Status::error(Code::kAborted, "rank 1 was killed by SIGKILL");
  });
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(loop.submit(request(9), sinks.back()).ok());
    if (i == 0) gate.wait_entered();
  }
  gate.open();
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->wait().end.status.message(), "rank 1 was killed by SIGKILL");
    EXPECT_EQ(sink->end.status.code(), Code::kAborted);
  }
  EXPECT_EQ(loop.status().code(), Code::kAborted);
  const Status later = loop.submit(request(9), sinks[0]).error().error.status;
  EXPECT_EQ(later.code(), Code::kUnavailable);
  EXPECT_EQ(later.causes().back().what, "rank 1 was killed by SIGKILL");
  loop.cancel(1);
  EXPECT_TRUE(loop.drain(Deadline::infinite()));
}

TEST(InferenceLoopTest, AnswersThatDoNotFitThePlanAreAFailure) {
  const auto status_of = [](const std::function<void(StepResult&)>& change) {
    InferenceLoop loop(test_model(), kLimits, [&](const StepPlan& plan) -> Result<StepOutcome> {
      Result<StepOutcome> result = Script{}(plan);
      change(*result->result);
      return result;
    });
    const auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(loop.submit(request(9), sink).ok());
    return sink->wait().end.status.code();
  };
  EXPECT_EQ(status_of([](StepResult& r) { r.tokens.clear(); }), Code::kInternal);
  EXPECT_EQ(status_of([](StepResult& r) { r.tokens.push_back(r.tokens[0]); }), Code::kInternal);
  EXPECT_EQ(status_of([](StepResult& r) { r.tokens[0].id = 99; }), Code::kInternal);
  EXPECT_EQ(status_of([](StepResult& r) { r.tokens[0].token_id = 892; }), Code::kInternal);
  EXPECT_EQ(status_of([](StepResult& r) { r.tokens[0].token_id = -1; }), Code::kInternal);
  EXPECT_EQ(status_of([](StepResult& r) { r.step += 1; }), Code::kInternal);
}

TEST(InferenceLoopTest, DrainWaitsForOpenRequests) {
  InferenceLoop loop(test_model(), kLimits, Script{});
  EXPECT_EQ(loop.load().running, 0);
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(50), sink).ok());
  EXPECT_TRUE(loop.drain(Deadline::infinite()));
  EXPECT_EQ(sink->wait().tokens.size(), 50u);
  EXPECT_TRUE(loop.drain(Deadline::after_ms(0))) << "idle: at once";
}

TEST(InferenceLoopTest, DrainPastItsDeadlineCancels) {
  InferenceLoop loop(test_model(), kEndless, unhurried);
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(loop.submit(request(100'000), sink).ok());
  EXPECT_FALSE(loop.drain(Deadline::after_ms(20)));
  EXPECT_EQ(sink->wait().end.status.code(), Code::kCancelled);
  EXPECT_EQ(sink->end.finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(loop.load().used_kv_blocks, 0);
}

TEST(InferenceLoopTest, DestructorEndsOpenRequests) {
  const auto running = std::make_shared<CollectingSink>();
  const auto waiting = std::make_shared<CollectingSink>();
  {
    EngineLimits one = kEndless;
    one.max_num_seqs = 1;
    InferenceLoop loop(test_model(), one, unhurried);
    ASSERT_TRUE(loop.submit(request(100'000), running).ok());
    ASSERT_TRUE(loop.submit(request(100'000), waiting).ok());
  }
  for (const auto& sink : {running, waiting})
    EXPECT_EQ(sink->wait().end.status.code(), Code::kCancelled);
  EXPECT_TRUE(waiting->tokens.empty());
}

TEST(InferenceLoopTest, ManyThreadsSubmitAndCancel) {
  EngineLimits limits = kLimits;
  limits.kv_blocks = 14;
  constexpr int kThreads = 4, kRounds = 60;
  std::atomic<int> refused = 0, cancelled = 0, complete = 0;
  {
    InferenceLoop loop(test_model(), limits, Script{}, {.queue = {.requests = 18}});
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::shared_ptr<CollectingSink>> sinks;
        for (int round = 0; round < kRounds; ++round) {
          auto sink = std::make_shared<CollectingSink>();
          const Result<uint64_t, RefusedRequest> id =
              loop.submit(request(1 + (t + round) % 60, {"zzz"}), sink, kClient);
          if (!id.ok()) {
            ++refused;
            std::this_thread::yield();
            continue;
          }
          if (round % 3 == 0) loop.cancel(*id);
          (void)loop.load();
          sinks.push_back(std::move(sink));
        }
        for (const auto& sink : sinks)
          ++(sink->wait().end.finish.reason == FinishReason::kCancelled ? cancelled : complete);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(loop.drain(Deadline::infinite()));
    EXPECT_EQ(loop.load().used_kv_blocks, 0);
    EXPECT_EQ(loop.queued_bytes(), 0);
  }
  EXPECT_EQ(refused + cancelled + complete, kThreads * kRounds);
  EXPECT_GT(complete, 0);
}

}  // namespace
}  // namespace shoal
