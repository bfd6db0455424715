#include <gtest/gtest.h>
#include <map>
#include <numeric>
#include <random>

#include "tests/runtime/engine/cached_model.h"
#include "tests/runtime/engine/scheduler_for_tests.h"

// Runs seeded random workloads against a model that reads its history back through the block
// tables. Whatever the limits, the batches, preemptions, cancels and lost steps are, each request
// must get the tokens that it gets alone.

namespace shoal {
namespace {

using Outputs = std::map<uint64_t, std::vector<int32_t>>;

struct Workload {
  EngineLimits limits;
  std::vector<EngineRequest> requests;
};

Workload random_workload(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&random](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  Workload workload;
  workload.limits.max_num_seqs = pick(1, 12);
  workload.limits.max_num_batched_tokens = seed % 3 == 0 ? pick(1, 8) : pick(8, 120);
  workload.limits.kv_blocks = pick(6, seed % 2 == 0 ? 8 : 40);
  workload.limits.max_model_len = pick(60, 90);
  for (uint64_t id = 1; id <= static_cast<uint64_t>(pick(1, 30)); ++id) {
    EngineRequest request;
    request.id = id;
    for (int32_t left = pick(1, 58); left > 0; --left) request.prompt.push_back(pick(0, 49));
    request.max_tokens = pick(1, 60);
    if (pick(0, 2) == 0) request.eos_token_ids = {pick(0, 49)};
    if (pick(0, 2) == 0) request.stop_token_ids = {pick(0, 49), pick(0, 49)};
    workload.requests.push_back(std::move(request));
  }
  return workload;
}

/// The definition of the right answer: one token after another, without a cache or a batch.
std::vector<int32_t> alone(const EngineRequest& request, const EngineLimits& limits) {
  const CachedModel model(0);
  std::vector<int32_t> tokens = request.prompt;
  std::vector<int32_t> output;
  const auto longest =
      static_cast<size_t>(std::min(limits.max_model_len, limits.kv_blocks * kBlockTokens));
  const auto is = [](const std::vector<int32_t>& ids, int32_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  while (output.size() < static_cast<size_t>(request.max_tokens) && tokens.size() < longest) {
    output.push_back(model.next_token(tokens));
    tokens.push_back(output.back());
    if (is(request.eos_token_ids, output.back()) || is(request.stop_token_ids, output.back()))
      break;
  }
  return output;
}

struct Disturbance {
  bool cancels = false;
  bool lost_steps = false;
};

struct Outcome {
  Outputs outputs;
  std::vector<uint64_t> cancelled;
  int64_t preemptions = 0;
  int steps = 0;
};

Outcome run(const Workload& workload, uint32_t seed, Disturbance disturbance) {
  std::mt19937 random(seed);
  SchedulerForTests scheduler(workload.limits);
  CachedModel model(workload.limits.kv_blocks);
  Outcome outcome;
  std::map<uint64_t, bool> finished;
  size_t next = 0;
  while (next < workload.requests.size() || scheduler.has_work()) {
    while (next < workload.requests.size() && (!scheduler.has_work() || random() % 3 == 0)) {
      EXPECT_TRUE(scheduler.add(workload.requests[next++]).ok());
    }
    const StepPlan plan = scheduler.plan();
    if (plan.sequences.empty()) {
      ADD_FAILURE() << "work, and an empty plan";
      return outcome;
    }
    EXPECT_EQ(plan.step, static_cast<uint64_t>(++outcome.steps));
    const StepResult result = model.run(plan, workload.limits.max_num_batched_tokens);
    if (disturbance.lost_steps && random() % 8 == 0) {
      scheduler.requeue_running();
      model = CachedModel(workload.limits.kv_blocks);  // the new workers' cache is empty
      continue;
    }
    if (disturbance.cancels && random() % 6 == 0) {
      const uint64_t id = 1 + random() % workload.requests.size();
      if (scheduler.finish(id)) outcome.cancelled.push_back(id);
    }
    for (const TokenEvent& event : scheduler.complete(result)) {
      const uint64_t id = event.token.id;
      EXPECT_FALSE(finished[id]) << "a token after the end of " << id;
      outcome.outputs[id].push_back(event.token.token_id);
      finished[id] = event.finish.has_value();
      EXPECT_TRUE(!event.finish || scheduler.finish(id));
    }
    EXPECT_LE(scheduler.load().running, workload.limits.max_num_seqs);
  }
  EXPECT_EQ(scheduler.load().used_kv_blocks, 0) << "blocks leaked";
  EXPECT_EQ(scheduler.load().waiting_tokens + scheduler.load().running_tokens, 0);
  outcome.preemptions = scheduler.load().preemptions;
  return outcome;
}

void expect_as_alone(const Workload& workload, const Outcome& outcome) {
  for (const EngineRequest& request : workload.requests) {
    std::vector<int32_t> expected = alone(request, workload.limits);
    const auto it = outcome.outputs.find(request.id);
    const std::vector<int32_t> got =
        it == outcome.outputs.end() ? std::vector<int32_t>{} : it->second;
    const auto& cancelled = outcome.cancelled;
    if (std::find(cancelled.begin(), cancelled.end(), request.id) != cancelled.end()) {
      ASSERT_LE(got.size(), expected.size());
      expected.resize(got.size());
    }
    ASSERT_EQ(got, expected) << "request " << request.id;
  }
}

TEST(SchedulerPropertyTest, EveryRequestGetsWhatItGetsAlone) {
  int64_t preemptions = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    const Workload workload = random_workload(seed);
    const Outcome outcome = run(workload, seed, {});
    expect_as_alone(workload, outcome);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    preemptions += outcome.preemptions;
  }
  EXPECT_GT(preemptions, 300) << "the workloads no longer reach preemption";
}

TEST(SchedulerPropertyTest, CancelsLeaveTheOthersAlone) {
  size_t cancelled = 0;
  for (uint32_t seed = 1000; seed < 1200; ++seed) {
    SCOPED_TRACE(seed);
    const Workload workload = random_workload(seed);
    const Outcome outcome = run(workload, seed, {.cancels = true});
    expect_as_alone(workload, outcome);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    cancelled += outcome.cancelled.size();
  }
  EXPECT_GT(cancelled, 200u);
}

TEST(SchedulerPropertyTest, LostStepsAreRunAgainWithTheSameTokens) {
  for (uint32_t seed = 2000; seed < 2200; ++seed) {
    SCOPED_TRACE(seed);
    const Workload workload = random_workload(seed);
    expect_as_alone(workload, run(workload, seed, {.cancels = true, .lost_steps = true}));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(SchedulerPropertyTest, ManyLongSequencesInAlmostNoBlocks) {
  Workload workload;
  workload.limits = {
      .max_num_seqs = 16, .max_num_batched_tokens = 16, .kv_blocks = 6, .max_model_len = 96};
  // The first ones are short, so that the scheduler expects the others to be short too.
  std::vector<int32_t> every_token(50);
  std::iota(every_token.begin(), every_token.end(), 0);
  for (uint64_t id = 1; id <= 60; ++id) {
    EngineRequest request;
    request.id = id;
    request.prompt = {static_cast<int32_t>(id), 2, 3};
    request.max_tokens = 90;
    if (id <= 40) request.eos_token_ids = every_token;
    workload.requests.push_back(std::move(request));
  }
  const Outcome outcome = run(workload, 1, {});
  expect_as_alone(workload, outcome);
  EXPECT_GT(outcome.preemptions, 10);
  // The oldest sequence runs in every step. So there are never more steps than if the requests ran
  // one after the other.
  EXPECT_LT(outcome.steps, 40 + 20 * 96);
}

TEST(SchedulerPropertyTest, SameCallsGiveTheSamePlans) {
  for (const uint32_t seed : {3u, 4u, 5u}) {
    const Workload workload = random_workload(seed);
    SchedulerForTests first(workload.limits);
    SchedulerForTests second(workload.limits);
    for (const EngineRequest& request : workload.requests) {
      ASSERT_TRUE(first.add(request).ok());
      ASSERT_TRUE(second.add(request).ok());
    }
    CachedModel model(workload.limits.kv_blocks);
    while (first.has_work()) {
      const StepPlan a = first.plan();
      const StepPlan b = second.plan();
      ASSERT_EQ(a.sequences.size(), b.sequences.size());
      for (size_t i = 0; i < a.sequences.size(); ++i) {
        ASSERT_EQ(a.sequences[i].id, b.sequences[i].id);
        ASSERT_EQ(a.sequences[i].token_ids, b.sequences[i].token_ids);
        ASSERT_EQ(a.sequences[i].block_table, b.sequences[i].block_table);
      }
      const StepResult result = model.run(a, workload.limits.max_num_batched_tokens);
      for (Scheduler* scheduler : {&first, &second}) {
        for (const TokenEvent& event : scheduler->complete(result)) {
          EXPECT_TRUE(!event.finish || scheduler->finish(event.token.id));
        }
      }
    }
    EXPECT_FALSE(second.has_work());
  }
}

}  // namespace
}  // namespace shoal
