// In which order requests get tokens and blocks.
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "tests/runtime/engine/scheduler_for_tests.h"

namespace shoal {
namespace {

class SchedulerOrderTest : public testing::Test {
 protected:
  static EngineLimits limits() {
    return {
        .max_num_seqs = 64, .max_num_batched_tokens = 512, .kv_blocks = 512, .max_model_len = 4096};
  }

  static EngineRequest request(uint64_t id, int32_t prompt_tokens, int32_t max_tokens = 4,
                               int32_t priority = 0) {
    EngineRequest result;
    result.id = id;
    result.prompt.assign(static_cast<size_t>(prompt_tokens), 1);
    result.max_tokens = max_tokens;
    result.priority = priority;
    return result;
  }

  /// A hundred requests end after one token, so that the next ones are expected to be short.
  void expect_short_outputs(Scheduler& scheduler) {
    for (uint64_t id = 1000; id < 1100; ++id) {
      EngineRequest one = request(id, 1, 2);
      one.eos_token_ids = {7};
      ASSERT_TRUE(scheduler.add(one).ok());
      step(scheduler);
    }
  }

  /// Runs a step. Returns how many tokens each sequence got in it.
  std::map<uint64_t, size_t> step(Scheduler& scheduler, const PrefillBudget& budget = {}) {
    const StepPlan plan = scheduler.plan(budget);
    std::map<uint64_t, size_t> tokens;
    StepResult result;
    result.step = plan.step;
    for (const SequenceStep& one : plan.sequences) {
      tokens[one.id] = one.token_ids.size();
      if (one.sample) result.tokens.push_back({one.id, 7, 0, 0, {}});
    }
    for (const TokenEvent& event : scheduler.complete(result)) {
      if (!event.finish) continue;
      EXPECT_TRUE(scheduler.finish(event.token.id));
      ended_.insert(event.token.id);
    }
    return tokens;
  }

  using Tokens = std::map<uint64_t, size_t>;
  std::set<uint64_t> ended_;
};

TEST_F(SchedulerOrderTest, TheBudgetDependsOnWhetherThereAreDecodes) {
  SchedulerForTests scheduler(limits());
  const PrefillBudget budget = {.alone = 20, .beside_decodes = 3};
  ASSERT_TRUE(scheduler.add(request(1, 25, 9)).ok());
  EXPECT_EQ(step(scheduler, budget), (Tokens{{1, 20}}));
  EXPECT_EQ(step(scheduler, budget), (Tokens{{1, 5}}));
  ASSERT_TRUE(scheduler.add(request(2, 30, 9)).ok());
  EXPECT_EQ(step(scheduler, budget), (Tokens{{1, 1}, {2, 3}}));
  EXPECT_EQ(step(scheduler, {.alone = 20, .beside_decodes = 0}), (Tokens{{1, 1}}));
  EXPECT_EQ(step(scheduler, {.alone = 20, .beside_decodes = 4}), (Tokens{{1, 1}, {2, 4}}));
}

TEST_F(SchedulerOrderTest, ThePromptThatLacksLeastGoesFirst) {
  SchedulerForTests scheduler(limits());
  const PrefillBudget budget = {.alone = 50};
  ASSERT_TRUE(scheduler.add(request(1, 300)).ok());
  EXPECT_EQ(step(scheduler, budget), (Tokens{{1, 50}}));
  ASSERT_TRUE(scheduler.add(request(2, 260)).ok());
  ASSERT_TRUE(scheduler.add(request(3, 40)).ok());
  EXPECT_EQ(step(scheduler, budget), (Tokens{{3, 40}, {1, 10}}));
  EXPECT_EQ(step(scheduler, {.alone = 50, .beside_decodes = 50}), (Tokens{{3, 1}, {1, 50}}));
}

TEST_F(SchedulerOrderTest, PlacesGoInOrderOfArrival) {
  EngineLimits one = limits();
  one.max_num_seqs = 1;
  SchedulerForTests scheduler(one);
  ASSERT_TRUE(scheduler.add(request(1, 4, 2)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 40, 1)).ok());
  ASSERT_TRUE(scheduler.add(request(3, 4, 1)).ok());
  EXPECT_EQ(step(scheduler), (Tokens{{1, 4}}));
  EXPECT_TRUE(scheduler.held_up());
  EXPECT_EQ(scheduler.ahead_of({.prompt_tokens = 4}).begins, 3);
  EXPECT_EQ(step(scheduler), (Tokens{{1, 1}}));
  EXPECT_EQ(step(scheduler), (Tokens{{2, 40}})) << "3 is shorter, but came later";
  EXPECT_EQ(step(scheduler), (Tokens{{3, 4}}));
  EXPECT_FALSE(scheduler.held_up());
}

TEST_F(SchedulerOrderTest, APlaceWithoutBlocksIsGivenBack) {
  SchedulerForTests scheduler(limits());
  ASSERT_TRUE(scheduler.add(request(1, 40, 1)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 50, 1)).ok());
  EXPECT_EQ(step(scheduler, {.alone = 5}), (Tokens{{1, 5}})) << "2 has a place, but no token";
  EXPECT_EQ(scheduler.load().running, 2);
  EXPECT_EQ(scheduler.ahead_of({.prompt_tokens = 30}).prompt_tokens, 0);
  EXPECT_EQ(scheduler.ahead_of({.prompt_tokens = 60}).prompt_tokens, 35 + 50);
  EXPECT_EQ(scheduler.ahead_of({.prompt_tokens = 60}).begins, 0) << "places are free";
  EXPECT_EQ(scheduler.load().preemptions, 0);
}

TEST_F(SchedulerOrderTest, APromptIsOvertakenAtMostSixteenTimes) {
  SchedulerForTests scheduler(limits());
  const PrefillBudget budget = {.alone = 10, .beside_decodes = 10};
  ASSERT_TRUE(scheduler.add(request(1, 400, 1)).ok());
  int overtaken = 0;
  for (uint64_t id = 2; id < 50; ++id) {
    ASSERT_TRUE(scheduler.add(request(id, 10, 1)).ok());
    const Tokens tokens = step(scheduler, budget);
    if (!tokens.contains(1)) {
      ++overtaken;
      EXPECT_EQ(tokens, (Tokens{{id, 10}}));
    }
  }
  EXPECT_EQ(overtaken, kMaxOvertaken);
}

TEST_F(SchedulerOrderTest, SmallerOnesPassOneThatFindsNoBlocksAtMostSixteenTimes) {
  EngineLimits few = limits();
  few.kv_blocks = 10;
  SchedulerForTests scheduler(few);
  ASSERT_TRUE(scheduler.add(request(1, 60, 30)).ok());  // six blocks in the end
  ASSERT_TRUE(scheduler.add(request(2, 120, 1)).ok());  // eight
  EXPECT_EQ(step(scheduler), (Tokens{{1, 60}}));
  int passed = 0;
  for (uint64_t id = 3; id < 3 + 2 * kMaxOvertaken && scheduler.load().running_tokens > 0; ++id) {
    ASSERT_TRUE(scheduler.add(request(id, 1, 1)).ok());
    passed += static_cast<int>(step(scheduler).count(id));
  }
  EXPECT_EQ(passed, kMaxOvertaken);
}

TEST_F(SchedulerOrderTest, NobodyPassesOneThatWaitsForTheBlocksItLost) {
  EngineLimits few = limits();
  few.kv_blocks = 6;
  few.max_model_len = 96;
  SchedulerForTests scheduler(few);
  expect_short_outputs(scheduler);
  ASSERT_TRUE(scheduler.add(request(1, 30, 60)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 30, 60)).ok());
  while (scheduler.load().preemptions == 0) step(scheduler);
  ASSERT_TRUE(scheduler.add(request(3, 1, 1)).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(step(scheduler), (Tokens{{1, 1}}));
  while (!step(scheduler).contains(3)) continue;
  EXPECT_GT(scheduler.load().running + scheduler.load().waiting, 0);  // the second is there again
}

TEST_F(SchedulerOrderTest, PrioritiesCountOnlyIfAskedFor) {
  for (const bool by_priority : {false, true}) {
    SCOPED_TRACE(by_priority);
    SchedulerForTests scheduler(
        limits(), by_priority ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs);
    ASSERT_TRUE(scheduler.add(request(1, 30, 4, 5)).ok());
    ASSERT_TRUE(scheduler.add(request(2, 40, 4, -1)).ok());
    ASSERT_TRUE(scheduler.add(request(3, 35, 4, -1)).ok());
    EXPECT_EQ(step(scheduler, {.alone = 20}), (Tokens{{by_priority ? 3 : 1, 20}}));
  }
}

TEST_F(SchedulerOrderTest, TheLowestPriorityIsPreemptedButNotForEver) {
  EngineLimits few = limits();
  few.kv_blocks = 18;
  few.max_model_len = 278;
  SchedulerForTests scheduler(few, SchedulingPolicy::kPriority);
  expect_short_outputs(scheduler);
  // The first to come is the least important one. Those that come after it take its blocks, until
  // it has been preempted often enough.
  ASSERT_TRUE(scheduler.add(request(1, 20, 248, 9)).ok());
  step(scheduler);
  int preempted = 0;
  uint64_t id = 2;
  for (bool running = true; id < 500 && !ended_.contains(1);) {
    if (scheduler.load().running + scheduler.load().waiting < 3) {
      ASSERT_TRUE(scheduler.add(request(id++, 40, 60, 0)).ok());
    }
    const bool in_step = step(scheduler).contains(1);
    if (running && !in_step) ++preempted;
    running = in_step;
  }
  EXPECT_EQ(preempted, kMaxPreempted);
}

TEST_F(SchedulerOrderTest, LowPriorityIsOvertakenAtMostSixteenTimes) {
  SchedulerForTests scheduler(limits(), SchedulingPolicy::kPriority);
  const PrefillBudget budget = {.alone = 10, .beside_decodes = 10};
  ASSERT_TRUE(scheduler.add(request(1, 10, 1, 100)).ok());
  int overtaken = 0;
  for (uint64_t id = 2; id < 60; ++id, ++overtaken) {
    ASSERT_TRUE(scheduler.add(request(id, 10, 1, -100)).ok());
    if (step(scheduler, budget).contains(1)) break;
  }
  EXPECT_EQ(overtaken, kMaxOvertaken);
}

}  // namespace
}  // namespace shoal
