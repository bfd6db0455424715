// Seats go round by client.
#include <deque>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>
#include <string>

#include "runtime/base/cat.h"
#include "tests/runtime/engine/scheduler_for_tests.h"

namespace shoal {
namespace {

/// A scheduler whose requests all generate one token. So a step that ends a prompt also ends that
/// request. A prompt has one token unless the test says otherwise.
class Turns {
 public:
  explicit Turns(int32_t seats, SchedulingPolicy policy = SchedulingPolicy::kFcfs,
                 int32_t kv_blocks = 4096)
      : scheduler_({.max_num_seqs = seats,
                    .max_num_batched_tokens = 512,
                    .kv_blocks = kv_blocks,
                    .max_model_len = 512},
                   policy) {}

  uint64_t add(const std::string& client, int32_t priority = 0, size_t prompt_tokens = 1) {
    EngineRequest request;
    request.id = ++last_id_;
    request.prompt.assign(prompt_tokens, 1);
    request.max_tokens = 1;
    request.priority = priority;
    request.client = client;
    EXPECT_TRUE(scheduler_.add(std::move(request)).ok());
    client_of_[last_id_] = client;
    return last_id_;
  }

  /// Runs a step. Returns the clients whose requests got a seat in it, in order of arrival.
  std::vector<std::string> step(const PrefillBudget& budget = {}) {
    const StepPlan plan = scheduler_.plan(budget);
    StepResult result;
    result.step = plan.step;
    std::vector<std::string> clients;
    for (const SequenceStep& one : plan.sequences) {
      if (begun_.insert(one.id).second) clients.push_back(client_of_.at(one.id));
      if (one.sample) result.tokens.push_back({one.id, 7, 0, 0, {}});
    }
    for (const TokenEvent& event : scheduler_.complete(result))
      EXPECT_TRUE(scheduler_.finish(event.token.id));
    return clients;
  }

  bool begun(uint64_t id) const { return begun_.contains(id); }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  SchedulerForTests scheduler_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::string> client_of_;
  std::set<uint64_t> begun_;
};

using Clients = std::vector<std::string>;

TEST(SchedulerTurnsTest, ClientsGetOneSeatEach) {
  Turns turns(1);
  for (int i = 0; i < 3; ++i) turns.add("a");
  turns.add("b");
  turns.add("c");
  turns.add("b");
  Clients order;
  for (int i = 0; i < 6; ++i) order.push_back(turns.step().at(0));
  EXPECT_EQ(order, (Clients{"a", "b", "c", "a", "b", "a"}));
}

TEST(SchedulerTurnsTest, SeveralSeatsOfAStepGoRoundToo) {
  Turns turns(4);
  for (int i = 0; i < 10; ++i) turns.add("a");
  turns.add("b");
  turns.add("c");
  EXPECT_EQ(turns.step(), (Clients{"a", "a", "b", "c"}));
}

TEST(SchedulerTurnsTest, OneWhoComesJoinsAtTheEndOfTheRound) {
  Turns turns(1);
  for (const char* client : {"a", "a", "b", "b"}) turns.add(client);
  EXPECT_EQ(turns.step(), Clients{"a"});
  turns.add("c");
  Clients order;
  for (int i = 0; i < 4; ++i) order.push_back(turns.step().at(0));
  EXPECT_EQ(order, (Clients{"b", "a", "c", "b"}));
}

TEST(SchedulerTurnsTest, ABetterPriorityGoesBeforeAnyTurn) {
  Turns turns(1, SchedulingPolicy::kPriority);
  for (const auto& [client, priority] :
       {std::pair("a", 0), {"a", 0}, {"b", 0}, {"a", -1}, {"a", -1}, {"b", -1}})
    turns.add(client, priority);
  Clients order;
  for (int i = 0; i < 6; ++i) order.push_back(turns.step().at(0));
  EXPECT_EQ(order, (Clients{"a", "b", "a", "b", "a", "a"}))
      << "three of priority -1 in turns, then the rest";
}

TEST(SchedulerTurnsTest, TheWorstPriorityRunsInTheEnd) {
  Turns turns(1, SchedulingPolicy::kPriority);
  const uint64_t worst = turns.add("a", 100);
  int passed = 0;
  for (; !turns.begun(worst) && passed < 100; ++passed) {
    turns.add(passed % 2 == 0 ? "b" : "c", -100);
    turns.step();
  }
  EXPECT_EQ(passed, kMaxOvertaken + 1);
}

/// With c clients waiting, a client's first request has a seat after at most c seats were given.
TEST(SchedulerTurnsTest, NobodyWaitsForMoreThanOneSeatOfEachClient) {
  std::mt19937 random(7);
  const auto pick = [&](uint32_t most) { return random() % most; };
  struct Line {
    std::deque<uint64_t> ids;  // those that wait
    size_t seats = 0;          // how many may be given before the first of them has its own
  };
  for (int life = 0; life < 200; ++life) {
    Turns turns(1 + static_cast<int32_t>(pick(4)));
    std::map<std::string, Line> lines;
    for (int step = 0; step < 300; ++step) {
      for (uint32_t more = pick(step % 50 < 25 ? 6 : 2); more > 0; --more) {
        const std::string client = cat("client ", pick(8));
        Line& line = lines[client];
        line.ids.push_back(turns.add(client));
        if (line.ids.size() == 1) line.seats = lines.size();
      }
      const size_t given = turns.step().size();
      for (auto& [client, line] : lines) {
        bool moved = false;
        for (; !line.ids.empty() && turns.begun(line.ids.front()); moved = true)
          line.ids.pop_front();
        ASSERT_TRUE(moved || line.seats > given) << client << " in life " << life;
        line.seats = moved ? 0 : line.seats - given;
      }
      std::erase_if(lines, [](const auto& entry) { return entry.second.ids.empty(); });
      for (auto& [client, line] : lines)
        if (line.seats == 0) line.seats = lines.size();
    }
  }
}

TEST(SchedulerTurnsTest, TheHundredthWaitsNoLongerThanTheFirst) {
  Turns turns(2);
  for (int i = 0; i < 1000; ++i) turns.add("greedy");
  int first = 0;
  for (int i = 1; i <= 100; ++i) {
    const uint64_t id = turns.add("modest");
    int steps = 0;
    for (; !turns.begun(id); ++steps) turns.step();
    if (i == 1) first = steps;
    ASSERT_LE(steps, first) << "request " << i;
  }
}

/// One that needs all blocks, behind two hundred that came earlier and fit beside each other.
TEST(SchedulerTurnsTest, OneThatFindsNoBlocksIsPassedSixteenTimesWhoeverCameFirst) {
  Turns turns(4, SchedulingPolicy::kFcfs, 10);
  for (int i = 0; i < 200; ++i) turns.add("a");
  const uint64_t large = turns.add("b", 0, 150);
  size_t begun = 0;
  while (!turns.begun(large) && begun < 200) begun += turns.step().size();
  EXPECT_LE(begun, size_t{kMaxOvertaken} + 2 * 4);
}

/// Requests that do not fit are passed by others of the same client, often enough to age.
/// They must not go before the turns of other clients for that.
TEST(SchedulerTurnsTest, AClientCannotQueueItselfBeforeTheTurnsOfOthers) {
  Turns turns(4, SchedulingPolicy::kFcfs, 10);
  turns.add("a", 0, 150);
  EXPECT_EQ(turns.step({.alone = 20}), Clients{"a"}) << "it runs for some steps";
  for (int i = 0; i < 20; ++i) turns.add("a", 0, 150);
  for (int i = 0; i < 20; ++i) turns.add("a");
  while (turns.scheduler().load().running > 0) turns.step({.alone = 20});
  const uint64_t other = turns.add("b");
  int large = 0;
  for (; !turns.begun(other) && large < 20; turns.step()) ++large;
  EXPECT_LE(large, 2);
}

/// Seats are free, but tokens of prompts are few, and shorter prompts go first.
TEST(SchedulerTurnsTest, ALongPromptIsOvertakenSixteenTimesWhoeverCameFirst) {
  Turns turns(64);
  for (int i = 0; i < 200; ++i) turns.add("a", 0, 8);
  const uint64_t longer = turns.add("b", 0, 9);
  size_t begun = 0;
  while (!turns.begun(longer) && begun < 200) begun += turns.step({.alone = 8}).size();
  EXPECT_LE(begun, size_t{kMaxOvertaken} + 2);
}

TEST(SchedulerTurnsTest, WhatIsAheadIsCountedByTurns) {
  Turns turns(1);
  for (int i = 0; i < 50; ++i) turns.add("a");
  EXPECT_EQ(turns.scheduler().ahead_of({.client = "a", .prompt_tokens = 1}).begins, 50);
  EXPECT_EQ(turns.scheduler().ahead_of({.client = "b", .prompt_tokens = 1}).begins, 1)
      << "its own seat and one of a's, of which one is free";
  turns.add("b");
  EXPECT_EQ(turns.scheduler().ahead_of({.client = "b", .prompt_tokens = 1}).begins, 3);
  EXPECT_EQ(turns.scheduler().ahead_of({.client = "b", .prompt_tokens = 1}, {1}).begins, 2);
}

}  // namespace
}  // namespace shoal
