#include "server/serving/request_figures.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>
#include <utility>

#include "tests/moved_clock.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;

int64_t ended(const RequestCounts& counts, RequestEnd how) {
  return counts.ended[static_cast<size_t>(how)];
}

int64_t all_ended(const RequestCounts& counts) {
  return std::accumulate(counts.ended.begin(), counts.ended.end(), int64_t{0});
}

/// A loop over scripted workers (a fake), and what it counts.
struct CountedLoop {
  explicit CountedLoop(StepFunction step, const EngineLimits& limits = kLimits,
                       const Scheduling& scheduling = {})
      : loop(test_model(), limits, std::move(step), scheduling) {}

  std::shared_ptr<CollectingSink> submit(const ResolvedRequest& request,
                                         const std::optional<RequestOrigin>& origin = {}) {
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(loop.submit(request, sink, origin).ok());
    return sink;
  }

  InferenceLoop loop;
};

TEST(TallyTest, AValueBelongsToTheRangeThatItEnds) {
  Tally tally({1, 10});
  for (const double value : {0.5, 1.0, 1.5, 10.0, 11.0}) tally.add(value);
  EXPECT_EQ(tally.counts(), (std::vector<uint64_t>{2, 2, 1}));
  EXPECT_EQ(tally.count(), 5u);
  EXPECT_DOUBLE_EQ(tally.sum(), 24);
}

TEST(RequestFiguresTest, RangesOfLengthsEndAtTheModelsLength) {
  const auto bounds = [](int32_t most) { return RequestCounts(most).prompt_length.bounds(); };
  EXPECT_EQ(bounds(100), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(bounds(60), (std::vector<double>{1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(bounds(2'000'000'000).back(), 2e9);
}

TEST(RequestFiguresTest, CountsHowRequestsEnd) {
  Script script;
  script.outputs = {{1, {40, 41, 1}}};
  CountedLoop counted(script);
  counted.submit(request(100))->wait();
  counted.submit(request(5))->wait();
  const RequestCounts counts = counted.loop.counts();
  EXPECT_EQ(ended(counts, RequestEnd::kStop), 1);
  EXPECT_EQ(ended(counts, RequestEnd::kLength), 1);
  EXPECT_EQ(all_ended(counts), 2);
  EXPECT_EQ(counts.prompt_tokens, 6);
  EXPECT_EQ(counts.generation_tokens, 8);
  EXPECT_EQ(counts.time_to_first_token.count(), 2u);
  EXPECT_EQ(counts.inter_token.count(), 6u);
  for (const Tally* tally : {&counts.whole, &counts.queue, &counts.prefill, &counts.decode,
                             &counts.per_output_token, &counts.prompt_length})
    EXPECT_EQ(tally->count(), 2u);
  EXPECT_DOUBLE_EQ(counts.prompt_length.sum(), 6);
  EXPECT_DOUBLE_EQ(counts.output_length.sum(), 8);
  EXPECT_EQ(counts.step_seconds.count(), 8u);
  EXPECT_DOUBLE_EQ(counts.step_tokens.sum(), 6 + 6) << "the prompts, then one token a step";
}

TEST(RequestFiguresTest, TimesAddUp) {
  CountedLoop counted([](const StepPlan& plan) {
    std::this_thread::sleep_for(milliseconds(5));
    return Script{}(plan);
  });
  const RequestOrigin origin{.client = "client", .arrived = Clock::now() - std::chrono::seconds(9)};
  const OutputEnd end = counted.submit(request(4), origin)->wait().end;
  const RequestCounts counts = counted.loop.counts();
  EXPECT_GE(counts.time_to_first_token.sum(), 9.005) << "from its arrival at the front";
  EXPECT_GE(counts.whole.sum(), 9.020);
  EXPECT_LT(counts.queue.sum(), 9) << "from when the loop took it";
  EXPECT_GE(counts.prefill.sum(), 0.005);
  EXPECT_GE(counts.decode.sum(), 0.015);
  EXPECT_NEAR(counts.inter_token.sum(), counts.decode.sum(), 1e-9);
  EXPECT_NEAR(counts.per_output_token.sum(), counts.decode.sum() / 3, 1e-9);
  EXPECT_EQ(end.how, RequestEnd::kLength) << "whoever logs the end has the same figures";
  EXPECT_EQ(end.queue_s, counts.queue.sum());
  EXPECT_EQ(end.first_token_s, counts.time_to_first_token.sum());
}

TEST(RequestFiguresTest, ACancelledRequestIsCountedWithItsTokensAndWithoutTimes) {
  EngineLimits endless = kLimits;
  endless.kv_blocks = 10'000;
  endless.max_model_len = 150'000;
  CountedLoop counted(
      [](const StepPlan& plan) {
        std::this_thread::sleep_for(milliseconds(1));
        return Script{}(plan);
      },
      endless);
  std::atomic<uint64_t> id = 0;
  const auto sink = std::make_shared<CollectingSink>();
  sink->after_delta = [&] {
    if (sink->tokens.size() >= 5 && id != 0) counted.loop.cancel(id);
  };
  id = counted.loop.submit(request(100'000), sink).value();
  sink->wait();
  const RequestCounts counts = counted.loop.counts();
  EXPECT_EQ(ended(counts, RequestEnd::kAbort), 1);
  EXPECT_EQ(all_ended(counts), 1);
  EXPECT_EQ(counts.generation_tokens, static_cast<int64_t>(sink->tokens.size()));
  EXPECT_EQ(counts.whole.count(), 0u);
}

TEST(RequestFiguresTest, WhatIsCancelledBesideItsLastTokenEndsAsCancelled) {
  // So that the loop needs some time for the text after it has the token. In nearly every round the
  // cancellation comes in that time, and one such round suffices.
  ResolvedRequest one_token = request(1);
  one_token.stop.assign(20'000, "never");
  bool cancelled = false;
  for (int round = 0; round < 200 && !cancelled; ++round) {
    CountedLoop counted(Script{});
    const auto sink = counted.submit(one_token);
    while (counted.loop.await_step(std::chrono::hours(1), [](const auto&) {}) ==
           InferenceLoop::Awaited::kLater)
      std::this_thread::yield();
    cancelled = counted.loop.cancel(1);  // false: it has ended already, so that this proves nothing
    EXPECT_EQ(sink->wait().end.finish.reason,
              cancelled ? FinishReason::kCancelled : FinishReason::kLength);
    EXPECT_EQ(sink->tokens.size(), 1u);
    const RequestCounts counts = counted.loop.counts();
    EXPECT_EQ(ended(counts, RequestEnd::kAbort), cancelled ? 1 : 0);
  }
}

TEST(RequestFiguresTest, LostRanksAndAShutdownAreCounted) {
  {
    CountedLoop lost([](const StepPlan&) -> Result<StepOutcome> {
      return Status::error(Code::kAborted, "rank 1 was killed");
    });
    lost.submit(request(9))->wait();
    EXPECT_EQ(ended(lost.loop.counts(), RequestEnd::kError), 1);
    EXPECT_EQ(lost.loop.counts().step_seconds.count(), 0u);
  }
  // The first step stands still until the loop has been told to end all requests.
  Gate gate;
  std::atomic<bool> held = false;
  CountedLoop counted([&](const StepPlan& plan) {
    if (!held.exchange(true)) gate.pass();
    return Script{}(plan);
  });
  counted.submit(request(190));
  counted.submit(request(190));
  gate.wait_entered();
  EXPECT_FALSE(counted.loop.drain(Deadline::after_ms(0), [&gate] { gate.open(); }));
  EXPECT_EQ(ended(counted.loop.counts(), RequestEnd::kAbort), 2);
}

TEST(RequestFiguresTest, ARequestRefusedInTheQueueCountsAsNeverTaken) {
  const MovedClock clock;  // or the first one, too, could wait for too long
  EngineLimits one = kLimits;
  one.max_num_seqs = 1;
  Gate gate;
  std::atomic<bool> held = false;
  CountedLoop counted(
      [&](const StepPlan& plan) {
        if (!held.exchange(true)) gate.pass();
        return Script{}(plan);
      },
      one, {.queue = {.seconds = 1}});
  const auto running = counted.submit(request(2), RequestOrigin{"client"});
  gate.wait_entered();
  const auto late = counted.submit(request(2), RequestOrigin{"client"});
  MovedClock::advance(2);
  counted.loop.end_late();
  const OutputEnd refused = late->wait().end;
  EXPECT_TRUE(refused.refused.has_value());
  EXPECT_FALSE(refused.how || refused.queue_s || refused.first_token_s);
  gate.open();
  running->wait();
  EXPECT_EQ(all_ended(counted.loop.counts()), 1);
}

TEST(RequestFiguresTest, WhatIsComputedAgainAfterAPreemptionIsNotCountedAgain) {
  // Sixty short answers, so that the scheduler expects the next ones to be short too and gives both
  // a place, although the cache cannot hold both to their ends.
  constexpr uint64_t kShort = 60;
  EngineLimits tight = kLimits;
  tight.kv_blocks = 8;
  Script script;
  for (uint64_t id = 1; id <= kShort; ++id) script.outputs[id] = {1};
  Gate gate;
  std::atomic<bool> armed = false;
  CountedLoop counted(
      [&](const StepPlan& plan) {
        if (armed.exchange(false)) gate.pass();
        return script(plan);
      },
      tight);
  for (uint64_t id = 1; id <= kShort; ++id) counted.submit(request(100))->wait();
  armed = true;
  const auto first = counted.submit(request(100));
  gate.wait_entered();
  const auto second = counted.submit(request(100));
  gate.open();
  first->wait();
  second->wait();
  EXPECT_GT(counted.loop.load().preemptions, 0);
  const RequestCounts counts = counted.loop.counts();
  EXPECT_EQ(counts.prompt_tokens, 3 * (kShort + 2));
  EXPECT_EQ(counts.generation_tokens, kShort + 200);
  EXPECT_EQ(counts.time_to_first_token.count(), kShort + 2);
  EXPECT_EQ(counts.inter_token.count(), 198u);
  EXPECT_EQ(counts.recovered, 0);
  EXPECT_GT(counts.step_tokens.sum(), 3 * (kShort + 2) + 198) << "steps count what they compute";
}

TEST(RequestFiguresTest, ARequestThatLosesItsFirstStepIsRecoveredToo) {
  bool lost = false;
  CountedLoop counted([&](const StepPlan& plan) -> Result<StepOutcome> {
    if (std::exchange(lost, true)) return Script{}(plan);
    return StepOutcome(Status::error(Code::kAborted, "rank 1 was killed"), true, true);
  });
  counted.submit(request(3))->wait();
  EXPECT_EQ(counted.loop.counts().recovered, 1);
  EXPECT_EQ(counted.loop.counts().prompt_tokens, 3);
}

TEST(RequestFiguresTest, WhoeverWasInALostStepIsRecoveredThoughNobodyBlamesIt) {
  // A kill from outside in the first step, and then the ranks are not back at once.
  for (const bool begun : {true, false}) {
    int call = 0;
    CountedLoop counted([&](const StepPlan& plan) -> Result<StepOutcome> {
      if (++call > 2) return Script{}(plan);
      return StepOutcome(Status::error(Code::kAborted, "rank 1 was killed"), false,
                         begun && call == 1);
    });
    EXPECT_TRUE(counted.submit(request(3))->wait().end.status.ok());
    EXPECT_EQ(counted.loop.counts().recovered, begun ? 1 : 0)
        << "a request that comes during a restart has lost nothing";
  }
}

TEST(RequestFiguresTest, ARestartIsInTheTimesAndChangesNoCount) {
  // The third step is lost. The ranks are not back at once, and a request comes meanwhile.
  std::atomic<int> call = 0;
  CountedLoop* loop = nullptr;
  std::shared_ptr<CollectingSink> newcomer;
  CountedLoop counted([&](const StepPlan& plan) -> Result<StepOutcome> {
    ++call;
    if (call < 3 || call > 6) return Script{}(plan);
    if (call == 4) newcomer = loop->submit(request(2));
    std::this_thread::sleep_for(milliseconds(20));
    return StepOutcome(Status::error(Code::kAborted, "rank 1 was killed"), call == 3, call == 3);
  });
  loop = &counted;
  const auto sink = counted.submit(request(8));
  EXPECT_TRUE(sink->wait().end.status.ok());
  EXPECT_TRUE(newcomer->wait().end.status.ok());
  const RequestCounts counts = counted.loop.counts();
  EXPECT_EQ(counts.recovered, 1) << "the other one had nothing to lose";
  EXPECT_EQ(counts.prompt_tokens, 6);
  EXPECT_EQ(counts.generation_tokens, 10);
  EXPECT_EQ(counts.time_to_first_token.count(), 2u);
  EXPECT_EQ(counts.inter_token.count(), 8u);
  EXPECT_GE(counts.inter_token.sum(), 0.08) << "its client waited for the restart";
  EXPECT_GE(counts.queue.sum(), 0.04) << "so did the one that came meanwhile";
  EXPECT_EQ(ended(counts, RequestEnd::kLength), 2);
  EXPECT_EQ(counts.step_seconds.count(), static_cast<uint64_t>(call - 4)) << "only good steps";
}

}  // namespace
}  // namespace shoal
