#include "runtime/engine/scheduler.h"

#include <gtest/gtest.h>
#include <numeric>
#include <type_traits>

#include "tests/runtime/engine/cached_model.h"
#include "tests/runtime/engine/scheduler_for_tests.h"

namespace shoal {
namespace {

// Nobody makes a scheduler but the key's friends.
static_assert(!std::is_default_constructible_v<SchedulerKey>);
static_assert(!std::is_aggregate_v<SchedulerKey>);

EngineLimits roomy_limits() {
  return {.max_num_seqs = 8, .max_num_batched_tokens = 64, .kv_blocks = 32, .max_model_len = 256};
}

EngineRequest request(uint64_t id, int32_t prompt_tokens, int32_t max_tokens) {
  EngineRequest result;
  result.id = id;
  result.prompt.resize(static_cast<size_t>(prompt_tokens));
  std::iota(result.prompt.begin(), result.prompt.end(), static_cast<int32_t>(id) * 1000);
  result.max_tokens = max_tokens;
  return result;
}

/// An answer to the plan in which every sampled sequence gets this token.
StepResult answer(const StepPlan& plan, int32_t token) {
  StepResult result;
  result.step = plan.step;
  for (const SequenceStep& step : plan.sequences) {
    if (step.sample) result.tokens.push_back({step.id, token, 0, 0, {}});
  }
  return result;
}

/// Completes a step as the engine's caller does: every sequence that has received its last token is
/// finished before the next plan.
std::vector<TokenEvent> complete(Scheduler& scheduler, const StepResult& result) {
  std::vector<TokenEvent> events = scheduler.complete(result);
  for (const TokenEvent& event : events)
    EXPECT_TRUE(!event.finish || scheduler.finish(event.token.id));
  return events;
}

std::vector<uint64_t> ids_of(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const SequenceStep& step : plan.sequences) ids.push_back(step.id);
  return ids;
}

/// Lets the scheduler expect short outputs, so that it admits what will have to be preempted.
void expect_short_outputs(Scheduler& scheduler) {
  for (uint64_t id = 1; id <= 100; ++id) {
    EngineRequest one = request(id, 1, 2);
    one.eos_token_ids = {7};
    ASSERT_TRUE(scheduler.add(one).ok());
    complete(scheduler, answer(scheduler.plan(), 7));
  }
}

TEST(SchedulerTest, RefusesWhatCouldNeverRun) {
  EngineLimits limits = roomy_limits();
  limits.max_model_len = 100;
  SchedulerForTests scheduler(limits);
  EXPECT_EQ(scheduler.add(request(1, 0, 5)).code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.add(request(1, 5, 0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.add(request(1, 5, 0)).field, RequestField::kMaxTokens);
  EXPECT_EQ(scheduler.add(request(1, 100, 5)).code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.add(request(1, 100, 5)).field, RequestField::kPrompt);
  EXPECT_TRUE(scheduler.add(request(1, 99, 5)).ok());
  EXPECT_EQ(scheduler.add(request(1, 5, 5)).code(), Code::kAlreadyExists);

  limits.kv_blocks = 2;
  SchedulerForTests small(limits);
  EXPECT_EQ(small.add(request(1, 32, 5)).code(), Code::kInvalidArgument);
  EXPECT_TRUE(small.add(request(1, 31, 5)).ok());
}

TEST(SchedulerTest, IdleSchedulerPlansNothing) {
  SchedulerForTests scheduler(roomy_limits());
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_TRUE(scheduler.plan().sequences.empty());
  EXPECT_TRUE(scheduler.complete({}).empty());
}

TEST(SchedulerTest, LongPromptTakesSeveralStepsAndTheLastSamples) {
  EngineLimits limits = roomy_limits();
  limits.max_num_batched_tokens = 10;
  SchedulerForTests scheduler(limits);
  ASSERT_TRUE(scheduler.add(request(1, 25, 3)).ok());
  int32_t position = 0;
  for (const int32_t chunk : {10, 10, 5}) {
    const StepPlan plan = scheduler.plan();
    ASSERT_EQ(plan.sequences.size(), 1u);
    EXPECT_EQ(plan.sequences[0].first_position, position);
    EXPECT_EQ(static_cast<int32_t>(plan.sequences[0].token_ids.size()), chunk);
    EXPECT_EQ(plan.sequences[0].token_ids[0], 1000 + position);
    EXPECT_EQ(plan.sequences[0].sample, chunk == 5);
    EXPECT_EQ(complete(scheduler, answer(plan, 7)).size(), chunk == 5 ? 1u : 0u);
    position += chunk;
  }
  const StepPlan decode = scheduler.plan();
  EXPECT_EQ(decode.sequences[0].token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(decode.sequences[0].first_position, 25);
}

TEST(SchedulerTest, DecodesComeBeforePromptChunks) {
  EngineLimits limits = roomy_limits();
  limits.max_num_batched_tokens = 10;
  SchedulerForTests scheduler(limits);
  ASSERT_TRUE(scheduler.add(request(1, 15, 5)).ok());
  complete(scheduler, answer(scheduler.plan(), 7));
  ASSERT_TRUE(scheduler.add(request(2, 3, 5)).ok());
  complete(scheduler, answer(scheduler.plan(), 7));  // 5 + 3 tokens: both sample
  ASSERT_TRUE(scheduler.add(request(3, 30, 5)).ok());
  const StepPlan plan = scheduler.plan();
  EXPECT_EQ(ids_of(plan), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(plan.sequences[0].token_ids.size(), 1u);
  EXPECT_EQ(plan.sequences[1].token_ids.size(), 1u);
  EXPECT_EQ(plan.sequences[2].token_ids.size(), 8u);
}

TEST(SchedulerTest, RunningSequencesNeverExceedSeqsOrTokens) {
  EngineLimits limits = roomy_limits();
  limits.max_num_seqs = 3;
  SchedulerForTests by_seqs(limits);
  limits.max_num_seqs = 8;
  limits.max_num_batched_tokens = 2;
  SchedulerForTests by_tokens(limits);
  for (Scheduler* scheduler : {&by_seqs, &by_tokens}) {
    for (const uint64_t id : {1, 2, 3, 4, 5}) ASSERT_TRUE(scheduler->add(request(id, 1, 9)).ok());
    const StepPlan plan = scheduler->plan();
    EXPECT_EQ(ids_of(plan), scheduler == &by_seqs ? (std::vector<uint64_t>{1, 2, 3})
                                                  : (std::vector<uint64_t>{1, 2}));
    complete(*scheduler, answer(plan, 7));
    EXPECT_EQ(ids_of(scheduler->plan()), ids_of(plan));
  }
}

TEST(SchedulerTest, EndsByEosStopIdAndLength) {
  SchedulerForTests scheduler(roomy_limits());
  EngineRequest by_eos = request(1, 4, 9);
  by_eos.eos_token_ids = {7};
  by_eos.stop_token_ids = {7};
  EngineRequest by_stop = request(2, 4, 9);
  by_stop.stop_token_ids = {3, 7};
  ASSERT_TRUE(scheduler.add(by_eos).ok());
  ASSERT_TRUE(scheduler.add(by_stop).ok());
  ASSERT_TRUE(scheduler.add(request(3, 4, 1)).ok());
  const std::vector<TokenEvent> events = complete(scheduler, answer(scheduler.plan(), 7));
  ASSERT_EQ(events.size(), 3u);
  for (const TokenEvent& event : events) ASSERT_TRUE(event.finish);
  EXPECT_EQ(events[0].finish->reason, FinishReason::kStop);
  EXPECT_TRUE(events[0].finish->stopped_by_eos);
  EXPECT_EQ(events[0].finish->stop_token_id, 7);
  EXPECT_EQ(events[1].finish->reason, FinishReason::kStop);
  EXPECT_FALSE(events[1].finish->stopped_by_eos);
  EXPECT_EQ(events[1].finish->stop_token_id, 7);
  EXPECT_EQ(events[2].finish->reason, FinishReason::kLength);
  EXPECT_EQ(events[2].finish->stop_token_id, -1);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.load().used_kv_blocks, 0);
}

TEST(SchedulerTest, OnlyFinishRemovesASequence) {
  SchedulerForTests scheduler(roomy_limits());
  ASSERT_TRUE(scheduler.add(request(1, 4, 1)).ok());
  const std::vector<TokenEvent> events = scheduler.complete(answer(scheduler.plan(), 7));
  ASSERT_EQ(events.size(), 1u);
  ASSERT_TRUE(events[0].finish);
  EXPECT_TRUE(scheduler.has_work());
  EXPECT_EQ(scheduler.load().used_kv_blocks, 1);
  EXPECT_TRUE(scheduler.finish(1));
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.load().used_kv_blocks, 0);
  EXPECT_FALSE(scheduler.finish(1));
}

TEST(SchedulerTest, ModelLengthAndTheWholeCacheEndWithLength) {
  EngineLimits limits = roomy_limits();
  limits.max_model_len = 20;
  limits.kv_blocks = 9;
  SchedulerForTests by_model(limits);
  limits.max_model_len = 200;
  limits.kv_blocks = 2;
  SchedulerForTests by_cache(limits);
  for (Scheduler* scheduler : {&by_model, &by_cache}) {
    ASSERT_TRUE(scheduler->add(request(1, 15, 1000)).ok());
    int tokens = 15;
    FinishReason reason = FinishReason::kStop;
    while (scheduler->has_work()) {
      for (const TokenEvent& event : complete(*scheduler, answer(scheduler->plan(), 7))) {
        ++tokens;
        if (event.finish) reason = event.finish->reason;
      }
    }
    EXPECT_EQ(tokens, scheduler == &by_model ? 20 : 32);
    EXPECT_EQ(reason, FinishReason::kLength);
  }
}

/// Sequences that somebody cuts short say nothing about the length of others.
TEST(SchedulerTest, OnlyEndsOfTheirOwnTellTheUsualLength) {
  EngineLimits limits = roomy_limits();
  limits.kv_blocks = 4;
  SchedulerForTests scheduler(limits);
  for (uint64_t id = 1; id <= 100; ++id) {
    ASSERT_TRUE(scheduler.add(request(id, 1, id % 2 == 0 ? 1 : 60)).ok());
    complete(scheduler, answer(scheduler.plan(), 7));
    if (id % 2 == 1) {
      EXPECT_TRUE(scheduler.finish(id, false)) << "a cancel";
    }
  }
  ASSERT_TRUE(scheduler.add(request(101, 10, 54)).ok());  // four blocks in the end
  ASSERT_TRUE(scheduler.add(request(102, 10, 54)).ok());
  (void)scheduler.plan();
  EXPECT_EQ(scheduler.load().running, 1) << "it is expected to need all blocks";
}

TEST(SchedulerTest, YoungestIsPreemptedAndResumesWithItsTokens) {
  EngineLimits limits = roomy_limits();
  limits.kv_blocks = 3;
  SchedulerForTests scheduler(limits);
  expect_short_outputs(scheduler);
  ASSERT_TRUE(scheduler.add(request(1, 15, 30)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 14, 30)).ok());
  // Both sequences fill their first block, and the elder one takes the third block. The younger one
  // needs another block at position 16 and waits. At position 32 the elder one needs one more, and
  // takes that of the younger.
  std::vector<int32_t> second_prefix;
  bool preempted = false;
  for (int step = 0; step < 60 && scheduler.has_work(); ++step) {
    const StepPlan plan = scheduler.plan();
    ASSERT_FALSE(plan.sequences.empty());
    for (const SequenceStep& sequence : plan.sequences) {
      if (sequence.id == 2 && preempted && second_prefix.empty()) {
        second_prefix = sequence.token_ids;
        EXPECT_EQ(sequence.first_position, 0);
      }
    }
    complete(scheduler, answer(plan, 7));
    preempted = scheduler.load().preemptions > 0;
  }
  EXPECT_EQ(scheduler.load().preemptions, 1);
  ASSERT_EQ(second_prefix.size(), 17u);  // 14 of the prompt, and those sampled before
  EXPECT_EQ(second_prefix[13], 2013);
  EXPECT_EQ(second_prefix[14], 7);
  EXPECT_FALSE(scheduler.has_work());
}

TEST(SchedulerTest, SequenceFinishedInMidStepIsDropped) {
  SchedulerForTests scheduler(roomy_limits());
  ASSERT_TRUE(scheduler.add(request(1, 4, 9)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 4, 9)).ok());
  const StepPlan plan = scheduler.plan();
  EXPECT_TRUE(scheduler.finish(1));
  EXPECT_FALSE(scheduler.finish(1));
  ASSERT_TRUE(scheduler.add(request(1, 4, 9)).ok());  // the same id, but a different sequence
  const std::vector<TokenEvent> events = complete(scheduler, answer(plan, 7));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].token.id, 2u);
  const StepPlan next = scheduler.plan();
  EXPECT_EQ(ids_of(next), (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(next.sequences[1].token_ids.size(), 4u);
}

TEST(SchedulerTest, RequeuedSequencesGoAheadInOrderWithTheirTokens) {
  EngineLimits limits = roomy_limits();
  limits.max_num_seqs = 2;
  SchedulerForTests scheduler(limits);
  for (const uint64_t id : {1, 2, 3}) ASSERT_TRUE(scheduler.add(request(id, 4, 9)).ok());
  complete(scheduler, answer(scheduler.plan(), 7));
  (void)scheduler.plan();  // this step is lost
  scheduler.requeue_running();
  EXPECT_EQ(scheduler.load().used_kv_blocks, 0);
  EXPECT_EQ(scheduler.load().waiting, 3);
  const StepPlan plan = scheduler.plan();
  EXPECT_EQ(ids_of(plan), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(plan.sequences[0].first_position, 0);
  EXPECT_EQ(plan.sequences[0].token_ids, (std::vector<int32_t>{1000, 1001, 1002, 1003, 7}));
  EXPECT_TRUE(plan.sequences[0].sample);
}

TEST(SchedulerTest, HistoryTravelsOnlyWithPenalties) {
  SchedulerForTests scheduler(roomy_limits());
  EngineRequest with = request(2, 3, 9);
  with.sampling.presence_penalty = 0.5f;
  ASSERT_TRUE(scheduler.add(request(1, 3, 9)).ok());
  ASSERT_TRUE(scheduler.add(with).ok());
  complete(scheduler, answer(scheduler.plan(), 7));
  const StepPlan plan = scheduler.plan();
  EXPECT_TRUE(plan.sequences[0].history.empty());
  EXPECT_EQ(plan.sequences[1].history, (std::vector<int32_t>{2000, 2001, 2002, 7}));
  EXPECT_EQ(plan.sequences[1].history_prompt_tokens, 3);
  EXPECT_EQ(plan.sequences[1].sampling.presence_penalty, 0.5f);
}

TEST(SchedulerTest, LoadCountsTokensAndBlocks) {
  EngineLimits limits = roomy_limits();
  limits.max_num_seqs = 1;
  SchedulerForTests scheduler(limits);
  ASSERT_TRUE(scheduler.add(request(1, 20, 9)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 25, 9)).ok());
  complete(scheduler, answer(scheduler.plan(), 7));
  const EngineLoad load = scheduler.load();
  EXPECT_EQ(load.running, 1);
  EXPECT_EQ(load.waiting, 1);
  EXPECT_EQ(load.running_tokens, 21);
  EXPECT_EQ(load.waiting_tokens, 25);
  EXPECT_EQ(load.used_kv_blocks, 2);
  EXPECT_EQ(load.total_kv_blocks, 32);
}

/// Runs requests that have all come at once, each of which generates all its tokens. Returns how
/// many tokens were computed for each one that would be without preemption.
double computed_per_needed(const EngineLimits& limits, int requests, int32_t prompt_tokens,
                           int32_t output_tokens, PrefillBudget budget) {
  SchedulerForTests scheduler(limits);
  for (int id = 1; id <= requests; ++id)
    EXPECT_TRUE(
        scheduler.add(request(static_cast<uint64_t>(id), prompt_tokens, output_tokens)).ok());
  int64_t computed = 0;
  while (scheduler.has_work()) {
    const StepPlan plan = scheduler.plan(budget);
    for (const SequenceStep& step : plan.sequences)
      computed += static_cast<int64_t>(step.token_ids.size());
    complete(scheduler, answer(plan, 7));
  }
  // The last token is sampled, and not computed.
  return static_cast<double>(computed) / (requests * (prompt_tokens + output_tokens - 1));
}

TEST(SchedulerTest, LittleIsComputedTwice) {
  for (const int32_t beside_decodes : {4, 1000}) {
    SCOPED_TRACE(beside_decodes);
    EngineLimits limits = {.max_num_seqs = 64,
                           .max_num_batched_tokens = 512,
                           .kv_blocks = 20 * 24,
                           .max_model_len = 4096};
    const PrefillBudget budget = {.beside_decodes = beside_decodes};
    // 64 streams, with room for the whole of 20.
    EXPECT_LT(computed_per_needed(limits, 64, 128, 256, budget), 1.2);
    EXPECT_LT(computed_per_needed(limits, 64, 16, 368, budget), 1.2);
    EXPECT_LT(computed_per_needed(limits, 64, 368, 16, budget), 1.2);
    // Four sequences, with room for 1.7 of them. When a sequence was admitted as soon as the blocks
    // of its prompt were free, 8.5 times the needed tokens were computed.
    limits.kv_blocks = 17 * 24 / 10;
    EXPECT_LT(computed_per_needed(limits, 4, 128, 256, budget), 1.6);
  }
}

TEST(KvBlockPoolTest, LowestFreeBlockFirst) {
  KvBlockPool pool(3);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.free(2);
  pool.free(0);
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 2);
}

}  // namespace
}  // namespace shoal
