// Admission on simulated machines: a real Scheduler and a real StepPace, and steps whose time is
// computed instead of measured. What the machine computes is a fake.
#include "server/serving/admission.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "tests/moved_clock.h"
#include "tests/runtime/engine/scheduler_for_tests.h"

namespace shoal {
namespace {

struct Machine {
  double step_s = 0.01, token_s = 0.001;
};

class Simulation {
 public:
  Simulation(const EngineLimits& limits, const QueueLimits& queue, Machine how_fast = {})
      : machine(how_fast),
        scheduler_(limits),
        pace_({.decode_stretch = 2, .max_step_s = 0.5}),
        admission_(queue, 2, scheduler_) {}

  /// Returns the refusal, if there is one. Those that are evicted are gone.
  std::optional<RefusedRequest> offer(int32_t prompt_tokens, int32_t max_tokens,
                                      double deadline_s = INFINITY, bool even_if_late = false,
                                      const std::string& client = "client") {
    EngineRequest request;
    request.id = ++last_id_;
    request.prompt.assign(static_cast<size_t>(prompt_tokens), 1);
    request.max_tokens = max_tokens;
    request.client = client;
    const RequestOrigin origin{client, Deadline::after_s(deadline_s)};
    Admission::Verdict verdict = admission_.decide(request, origin, 100);
    if (verdict.refused && !(even_if_late && verdict.refused->why == NotTaken::kTooLate))
      return verdict.refused;
    for (const uint64_t other : verdict.evict) {
      EXPECT_EQ(admission_.evicted(other).why, NotTaken::kShareExceeded);
      leave(other);
      ++evicted;
    }
    admission_.add(last_id_, origin, prompt_tokens, 100);
    EXPECT_TRUE(scheduler_.add(std::move(request)).ok());
    came_[last_id_] = now_s;
    return std::move(verdict.refused);
  }

  /// One step, or a millisecond if there is nothing to do.
  void step() {
    const StepPlan plan = scheduler_.plan(pace_.budget());
    if (plan.sequences.empty()) {
      now_s += 0.001;
      return;
    }
    admission_.planned(plan);
    const StepSize size = size_of(plan);
    const double seconds = machine.step_s + machine.token_s * (size.decodes + size.prompt_tokens);
    now_s += seconds;
    StepResult result;
    result.step = plan.step;
    for (const SequenceStep& one : plan.sequences) {
      if (one.first_position == 0 && !began_s_.contains(one.id)) began_s_[one.id] = now_s - seconds;
      if (one.sample) result.tokens.push_back({one.id, 5, 0, 0, {}});
    }
    pace_.note(size, seconds);
    admission_.ended_well(seconds);
    for (const TokenEvent& event : scheduler_.complete(result)) {
      first_token_s_.emplace(event.token.id, now_s);
      if (event.finish) scheduler_.finish(event.token.id);
    }
  }

  /// The client of a waiting request gives up.
  void leave(uint64_t id) {
    admission_.remove(id);
    EXPECT_TRUE(scheduler_.finish(id, false));
  }

  void finish_all() {
    while (scheduler_.has_work()) step();
  }

  /// How long it took from coming to the first step, or to the first token.
  double waited_s(uint64_t id) const { return began_s_.at(id) - came_.at(id); }
  double first_token_s(uint64_t id) const { return first_token_s_.at(id) - came_.at(id); }
  uint64_t last_id() const { return last_id_; }
  int64_t queued_bytes() const { return admission_.queued_bytes(); }

  double now_s = 0;
  Machine machine;
  int evicted = 0;

 private:
  SchedulerForTests scheduler_;
  StepPace pace_;
  Admission admission_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, double> came_, began_s_, first_token_s_;
};

constexpr EngineLimits kFewPlaces{
    .max_num_seqs = 8, .max_num_batched_tokens = 512, .kv_blocks = 1000, .max_model_len = 2000};
constexpr EngineLimits kFewBlocks{
    .max_num_seqs = 64, .max_num_batched_tokens = 512, .kv_blocks = 60, .max_model_len = 900};
constexpr EngineLimits kManyPlaces{
    .max_num_seqs = 64, .max_num_batched_tokens = 512, .kv_blocks = 10'000, .max_model_len = 2000};

struct Load {
  const char* what;
  EngineLimits limits;
  int32_t least_prompt, most_prompt, least_output, most_output;
  double arrivals_per_s;
};

struct Draw {
  explicit Draw(uint32_t seed) : random(seed) {}
  int32_t operator()(int32_t least, int32_t most) {
    return least + static_cast<int32_t>(random() % static_cast<uint32_t>(most - least + 1));
  }
  std::mt19937 random;
};

/// Ten times what the engine can do, for a simulated minute. Refused requests are told to come
/// again after the time that the last one that was taken waits. All prompts have the same length,
/// because a shorter one waits less.
TEST(Admission, TellsWhenToComeAgain) {
  const Load loads[] = {
      {"places are short", kFewPlaces, 16, 16, 20, 60, 50},
      {"KV blocks are short", kFewBlocks, 100, 100, 20, 60, 50},
      {"long prompts", kManyPlaces, 600, 600, 2, 6, 12},
  };
  for (const Load& load : loads) {
    SCOPED_TRACE(load.what);
    Draw pick(3);
    Simulation simulation(load.limits, {.requests = 100});
    struct Refusal {
      double retry_s;
      uint64_t last_taken;
    };
    std::vector<Refusal> refusals;
    uint64_t last_taken = 0;
    int offered = 0;
    for (double next_s = 0; simulation.now_s < 60; simulation.step()) {
      for (; next_s < simulation.now_s; next_s += 1 / load.arrivals_per_s) {
        ++offered;
        const int32_t prompt = pick(load.least_prompt, load.most_prompt);
        const auto refused = simulation.offer(prompt, pick(load.least_output, load.most_output));
        if (!refused) {
          last_taken = simulation.last_id();
        } else {
          EXPECT_EQ(refused->why, NotTaken::kQueueFull);
          refusals.push_back({1e-3 * refused->retry_ms, last_taken});
        }
      }
    }
    simulation.finish_all();
    std::vector<double> ratios;
    for (const Refusal& refusal : refusals)
      ratios.push_back(refusal.retry_s / simulation.waited_s(refusal.last_taken));
    ASSERT_GT(ratios.size(), static_cast<size_t>(offered) / 2);
    std::sort(ratios.begin(), ratios.end());
    const double median = ratios[ratios.size() / 2];
    EXPECT_GT(median, 0.5);
    EXPECT_LT(median, 2);
    EXPECT_EQ(simulation.queued_bytes(), 0);
  }
}

/// Short answers, then long ones, then short ones again, whose deadline would suffice for all.
TEST(Admission, ForgetsALongQueueWhenASeatHasBeenFree) {
  const MovedClock clock;
  for (const double rest_s : {4.0, 6.0}) {
    SCOPED_TRACE(rest_s);
    EngineLimits four = kFewPlaces;
    four.max_num_seqs = 4;
    Simulation simulation(four, {.requests = 1000});
    for (int i = 0; i < 24; ++i) EXPECT_FALSE(simulation.offer(8, 500));
    simulation.finish_all();
    MovedClock::advance(rest_s);
    int refused = 0;
    for (int i = 0; i < 60; ++i) refused += simulation.offer(8, 2, 6.0) ? 1 : 0;
    simulation.finish_all();
    EXPECT_EQ(refused > 0, rest_s < 5) << refused << " of 60 refused";
  }
}

/// Requests with deadlines of 0.1 to 20 s. Those that are refused for it are taken all the same,
/// and none of them has its first token in time.
TEST(Admission, RefusesOnlyWhatSurelyComesTooLate) {
  const Load loads[] = {
      {"places are short", kFewPlaces, 8, 32, 20, 60, 15},
      {"KV blocks are short", kFewBlocks, 50, 150, 20, 60, 10},
      {"long prompts", kManyPlaces, 300, 900, 2, 6, 3},
  };
  for (const Load& load : loads) {
    SCOPED_TRACE(load.what);
    Draw pick(5);
    Simulation simulation(load.limits, {.requests = 10'000});
    std::map<uint64_t, double> deadlines;
    for (double next_s = 0; simulation.now_s < 60; simulation.step()) {
      for (; next_s < simulation.now_s; next_s += 1 / load.arrivals_per_s) {
        const double deadline_s = 0.1 * pick(1, 200);
        const int32_t prompt = pick(load.least_prompt, load.most_prompt);
        const auto refused =
            simulation.offer(prompt, pick(load.least_output, load.most_output), deadline_s, true);
        if (!refused) continue;
        EXPECT_EQ(refused->error.code(), Code::kResourceExhausted);
        deadlines[simulation.last_id()] = deadline_s;
      }
    }
    simulation.finish_all();
    int wrong = 0;
    for (const auto& [id, deadline_s] : deadlines)
      wrong += simulation.first_token_s(id) <= deadline_s ? 1 : 0;
    EXPECT_GT(deadlines.size(), 20u);
    EXPECT_LE(wrong, static_cast<int>(deadlines.size() / 100)) << "of " << deadlines.size();
  }
}

TEST(Admission, RefusesNothingByEstimateBeforeThereAreRates) {
  Simulation simulation(kFewPlaces, {.requests = 1000, .seconds = 1e-6});
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(simulation.offer(20, 20, 1e-3).has_value());
}

/// A server that was slow once must find out that it is fast by now.
TEST(Admission, TakesARequestThatNothingIsAheadOf) {
  Simulation simulation(kManyPlaces, {}, {.step_s = 1, .token_s = 1});
  EXPECT_FALSE(simulation.offer(600, 2).has_value());
  EXPECT_FALSE(simulation.offer(600, 2).has_value());
  for (int i = 0; i < 600; ++i) simulation.step();
  EXPECT_TRUE(simulation.offer(1500, 2, 5).has_value()) << "a second or more for each token";
  simulation.finish_all();
  simulation.machine = {};
  EXPECT_FALSE(simulation.offer(1500, 2, 5).has_value());
  simulation.finish_all();
  EXPECT_LT(simulation.first_token_s(simulation.last_id()), 5);
}

/// While one long answer takes the only place, everybody who waits gives up. The next ones must not
/// be refused for ever because of it.
TEST(Admission, ForgetsAnHourInWhichNobodyBegan) {
  EngineLimits one = kFewPlaces;
  one.max_num_seqs = 1;
  Simulation simulation(one, {.requests = 1000, .seconds = 5});
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(simulation.offer(8, 20).has_value());
  simulation.finish_all();
  simulation.machine.step_s = 2;
  EXPECT_FALSE(simulation.offer(8, 1800).has_value());
  simulation.step();
  for (int i = 1; i < 1700; ++i) {
    if (!simulation.offer(8, 20).has_value()) {
      simulation.step();
      simulation.leave(simulation.last_id());
    } else {
      simulation.step();
    }
  }
  simulation.machine = {};
  simulation.finish_all();
  int served = 0;
  for (int waiting = 0; served < 60 && waiting < 4; ++served) {
    waiting = 0;
    EXPECT_FALSE(simulation.offer(8, 20).has_value());
    simulation.step();
    while (waiting < 4 && !simulation.offer(8, 20).has_value()) ++waiting;
    simulation.finish_all();
  }
  EXPECT_LT(served, 60) << "each of five takes 0.2 s, and still they may not wait for 5 s";
}

/// The first in line may get a place at any moment.
TEST(Admission, TakesTheFirstInLine) {
  EngineLimits one = kFewPlaces;
  one.max_num_seqs = 1;
  Simulation simulation(one, {});
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(simulation.offer(8, 1000).has_value());
  simulation.finish_all();  // 10 s each
  EXPECT_FALSE(simulation.offer(8, 1000).has_value());
  for (int i = 0; i < 990; ++i) simulation.step();
  EXPECT_FALSE(simulation.offer(8, 10, 4).has_value());
  const uint64_t first = simulation.last_id();
  EXPECT_FALSE(simulation.offer(8, 1000).has_value());
  EXPECT_FALSE(simulation.offer(8, 1000).has_value());
  EXPECT_TRUE(simulation.offer(8, 10, 4).has_value());
  simulation.finish_all();
  EXPECT_LT(simulation.first_token_s(first), 4);
}

/// The queue is full for everybody when it takes --max-queue-time.
TEST(Admission, TheGreedyClientIsEvictedWhenTheQueueTakesTooLong) {
  Simulation simulation(kFewPlaces, {.requests = 1000, .seconds = 4});
  for (int i = 0; i < 60; ++i)
    EXPECT_FALSE(simulation.offer(8, 40, INFINITY, false, "greedy").has_value());
  while (simulation.now_s < 3) simulation.step();
  int queued = 0;
  while (!simulation.offer(8, 40, INFINITY, false, "greedy").has_value()) ++queued;
  EXPECT_EQ(simulation.evicted, 0);
  int taken = 0;
  while (taken < 200 && !simulation.offer(8, 40, INFINITY, false, "modest").has_value()) ++taken;
  EXPECT_GT(taken, queued / 3);
  EXPECT_LT(taken, queued) << "half of the queue is the greedy one's";
  simulation.finish_all();
  EXPECT_EQ(simulation.queued_bytes(), 0);
}

/// Otherwise one client could empty the queue of another with short deadlines.
TEST(Admission, NobodyIsEvictedForADeadline) {
  Simulation simulation(kFewPlaces, {.requests = 1000});
  for (int i = 0; i < 200; ++i)
    EXPECT_FALSE(simulation.offer(8, 40, INFINITY, false, "greedy").has_value());
  while (simulation.now_s < 4) simulation.step();
  // It gets every second seat, and its own queue makes it too late.
  for (int i = 0; i < 60; ++i)
    EXPECT_FALSE(simulation.offer(8, 40, INFINITY, false, "hasty").has_value());
  for (int i = 0; i < 20; ++i)
    EXPECT_TRUE(simulation.offer(8, 40, 0.1 * i, false, "hasty").has_value());
  EXPECT_EQ(simulation.evicted, 0);
}

/// Short prompts never fill a step, and yet show that the machine is fast again.
TEST(Admission, ShortPromptsShowThatTheMachineIsFast) {
  Simulation simulation(kManyPlaces, {}, {.step_s = 1, .token_s = 1});
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(simulation.offer(600, 2).has_value());
  simulation.finish_all();
  simulation.machine = {};
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    refused += simulation.offer(100, 2, 1).has_value() ? 1 : 0;
    refused += simulation.offer(100, 2, 1).has_value() ? 1 : 0;
    simulation.finish_all();
  }
  EXPECT_LT(refused, 10);
}

TEST(Admission, SaysHowLongTheQueueIs) {
  Simulation simulation(kFewPlaces, {.requests = 1000, .seconds = 2});
  for (int i = 0; i < 80; ++i) ASSERT_FALSE(simulation.offer(20, 40).has_value());
  while (simulation.now_s < 5) simulation.step();
  std::optional<RefusedRequest> refused;
  for (int i = 0; i < 80 && !refused; ++i) refused = simulation.offer(20, 40);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why, NotTaken::kTooLate);
  EXPECT_GT(refused->retry_ms, 2 * 2000) << "twice the limit is taken to be possible";
  const std::string text = refused->error.status.to_string();
  EXPECT_NE(text.find("--max-queue-time"), std::string::npos) << text;
  EXPECT_NE(text.find("try again in"), std::string::npos) << text;
}

}  // namespace
}  // namespace shoal
