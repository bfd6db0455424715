// Drives the scheduler with 100,000 short random sequences of add, plan, complete, finish and
// requeue, and compares every plan with a model of what it may do. The model is an observer: it
// knows only what add() was given and what the plans say. A sanitizer's build and scripts/test take
// a tenth of them.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/breadth.h"
#include "tests/runtime/engine/cached_model.h"
#include "tests/runtime/engine/scheduler_for_tests.h"

namespace shoal {
namespace {

/// What can be seen of one request.
struct Seen {
  std::vector<int32_t> tokens;  // prompt, then output
  int32_t computed = 0;
  std::vector<int32_t> blocks;  // empty: it waits
  int overtaken = 0;
  bool prompt_open = true;
};

/// Requests by id. Ids are given in order of arrival.
class Model {
 public:
  Model(const EngineLimits& limits, bool by_priority, bool one_client)
      : limits_(limits), by_priority_(by_priority), one_client_(one_client) {}

  void add(uint64_t id, const std::vector<int32_t>& prompt) { seen_[id].tokens = prompt; }

  void finish(uint64_t id) { seen_.erase(id); }

  void lose_all_blocks() {
    for (auto& [id, one] : seen_) lose_blocks(one);
  }

  void check(const StepPlan& plan, const PrefillBudget& budget, int64_t preemptions) {
    std::set<uint64_t> planned;
    for (const SequenceStep& step : plan.sequences) planned.insert(step.id);
    const bool preempted = preemptions > preemptions_;
    find_preempted(plan, planned, preemptions);
    check_what_ranks_first(plan, planned);
    int32_t decodes = 0, prompt_tokens = 0;
    for (const SequenceStep& step : plan.sequences) {
      const bool decode = check_step(step);
      (decode ? decodes : prompt_tokens) += static_cast<int32_t>(step.token_ids.size());
    }
    ASSERT_LE(decodes + prompt_tokens, limits_.max_num_batched_tokens);
    // A prompt may preempt the last decode after the budget was chosen.
    ASSERT_LE(prompt_tokens, decodes > 0 ? budget.beside_decodes
                             : preempted ? std::max(budget.alone, budget.beside_decodes)
                                         : budget.alone);
    ASSERT_LE(running(), limits_.max_num_seqs);
    check_blocks();
    note_overtaking(plan);
  }

  /// The tokens of the plan are computed, and the sampled ones appended.
  void complete(const StepPlan& plan, const StepResult& result) {
    for (const SequenceStep& step : plan.sequences) {
      if (const auto it = seen_.find(step.id); it != seen_.end())
        it->second.computed += static_cast<int32_t>(step.token_ids.size());
    }
    for (const SampledToken& token : result.tokens) {
      if (const auto it = seen_.find(token.id); it != seen_.end())
        it->second.tokens.push_back(token.token_id);
    }
  }

  int32_t used_blocks() const {
    size_t used = 0;
    for (const auto& [id, one] : seen_) used += one.blocks.size();
    return static_cast<int32_t>(used);
  }

 private:
  static void lose_blocks(Seen& one) {
    one.blocks.clear();
    one.computed = 0;
    one.prompt_open = true;
  }

  int32_t running() const {
    return static_cast<int32_t>(std::count_if(seen_.begin(), seen_.end(), [](const auto& entry) {
      return !entry.second.blocks.empty();
    }));
  }

  /// A sequence was preempted if it begins again, or if a block of it now belongs to another. The
  /// blocks of the rest are where they were.
  void find_preempted(const StepPlan& plan, const std::set<uint64_t>& planned,
                      int64_t preemptions) {
    std::map<int32_t, uint64_t> owner;
    for (auto& [id, one] : seen_) {
      for (const int32_t block : one.blocks) owner[block] = id;
    }
    int64_t lost = 0;
    for (const SequenceStep& step : plan.sequences) {
      for (const int32_t block : step.block_table) {
        const auto it = owner.find(block);
        if (it == owner.end() || it->second == step.id) continue;
        ASSERT_FALSE(planned.contains(it->second)) << "a block of a running sequence is given away";
        ASSERT_TRUE(preemptions > preemptions_) << "block " << block << " was in use";
        ++lost;
        const uint64_t loser = it->second;
        std::erase_if(owner, [loser](const auto& entry) { return entry.second == loser; });
        lose_blocks(seen_.at(loser));
      }
    }
    // The others that have lost their blocks are found when they begin again.
    ASSERT_LE(lost, preemptions - preemptions_);
    hidden_ += preemptions - preemptions_ - lost;
    preemptions_ = preemptions;
  }

  /// The earliest running sequence gets its token in every step. This holds only for a decode,
  /// because shorter prompts may go before an earlier one.
  void check_what_ranks_first(const StepPlan& plan, const std::set<uint64_t>& planned) const {
    ASSERT_FALSE(plan.sequences.empty()) << "work, and an empty plan";
    if (by_priority_) return;
    for (const auto& [id, one] : seen_) {
      if (one.blocks.empty()) continue;
      const bool decode = static_cast<int32_t>(one.tokens.size()) - one.computed == 1;
      ASSERT_TRUE(!decode || planned.contains(id)) << "the first sequence " << id << " waits";
      break;
    }
  }

  /// Returns true if the step is a decode.
  bool check_step(const SequenceStep& step) {
    Seen& one = seen_.at(step.id);
    if (step.first_position == 0 && one.computed > 0) {
      --hidden_;
      lose_blocks(one);
    }
    EXPECT_EQ(step.first_position, one.computed);
    const auto first = one.tokens.begin() + one.computed;
    EXPECT_TRUE(std::equal(
        step.token_ids.begin(), step.token_ids.end(), first,
        std::min(first + static_cast<ptrdiff_t>(step.token_ids.size()), one.tokens.end())));
    EXPECT_GE(step.block_table.size(), one.blocks.size());
    EXPECT_TRUE(std::equal(one.blocks.begin(), one.blocks.end(), step.block_table.begin()));
    const bool decode =
        one.tokens.size() - static_cast<size_t>(one.computed) == 1 && !one.blocks.empty();
    one.blocks = step.block_table;
    return decode;
  }

  void check_blocks() const {
    std::set<int32_t> blocks;
    for (const auto& [id, one] : seen_) {
      for (const int32_t block : one.blocks) {
        ASSERT_TRUE(block >= 0 && block < limits_.kv_blocks);
        // A sequence may have been preempted although no plan has shown it yet. Its blocks may
        // already belong to another sequence.
        ASSERT_TRUE(blocks.insert(block).second || hidden_ > 0) << "block " << block << " twice";
      }
    }
  }

  /// A sequence that begins for the first time before an earlier prompt has ended overtakes that
  /// prompt. If the earlier sequence still waits, this is certain only if it does not wait for the
  /// turn of a client.
  void note_overtaking(const StepPlan& plan) {
    for (const SequenceStep& step : plan.sequences)
      if (step.sample) seen_.at(step.id).prompt_open = false;
    for (const SequenceStep& step : plan.sequences) {
      if (step.first_position > 0 || !begun_.insert(step.id).second) continue;
      for (auto& [id, one] : seen_) {
        if (id >= step.id) break;
        if (!one.prompt_open || (!one_client_ && one.blocks.empty())) continue;
        ASSERT_LE(++one.overtaken, kMaxOvertaken) << step.id << " overtakes " << id << " again";
      }
    }
  }

  const EngineLimits limits_;
  const bool by_priority_, one_client_;
  std::map<uint64_t, Seen> seen_;
  std::set<uint64_t> begun_;
  int64_t preemptions_ = 0, hidden_ = 0;
};

struct Random {
  explicit Random(uint32_t seed) : generator(seed) {}
  int32_t pick(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(generator() % static_cast<uint32_t>(high - low + 1));
  }
  std::mt19937 generator;
};

EngineLimits random_limits(Random& random) {
  EngineLimits limits;
  limits.max_num_seqs = random.pick(1, 6);
  limits.max_num_batched_tokens = random.pick(1, 3) == 1 ? random.pick(1, 6) : random.pick(6, 80);
  limits.kv_blocks = random.pick(2, 8);
  limits.max_model_len = random.pick(20, 80);
  return limits;
}

PrefillBudget random_budget(Random& random) {
  constexpr int32_t kBudgets[] = {1, 2, 7, 30, 1000};
  return {.alone = kBudgets[random.pick(0, 4)],
          .beside_decodes = random.pick(0, 5) == 0 ? 0 : kBudgets[random.pick(0, 4)]};
}

/// One short life of a scheduler. Returns how often it preempted.
int64_t live(uint32_t seed) {
  Random random(seed);
  const EngineLimits limits = random_limits(random);
  const bool by_priority = random.pick(0, 1) == 1;
  SchedulerForTests scheduler(limits,
                              by_priority ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs);
  const int clients = random.pick(1, 3);
  Model model(limits, by_priority, clients == 1);
  CachedModel ranks(limits.kv_blocks);
  std::map<uint64_t, std::vector<int32_t>>
      expected;  // what each request's ranks would answer alone
  const int32_t longest = std::min(limits.max_model_len, limits.kv_blocks * kBlockTokens);
  const int32_t requests = random.pick(1, random.pick(1, 10) == 1 ? 24 : 5);
  uint64_t next = 0;
  for (int steps = 0; next < static_cast<uint64_t>(requests) || scheduler.has_work(); ++steps) {
    if (steps > 4000) {
      ADD_FAILURE() << "somebody starves";
      return 0;
    }
    while (next < static_cast<uint64_t>(requests) &&
           (!scheduler.has_work() || random.pick(0, 2) == 0)) {
      EngineRequest request;
      request.id = ++next;
      for (int32_t left = random.pick(1, longest - 1); left > 0; --left)
        request.prompt.push_back(random.pick(0, 49));
      request.max_tokens = random.pick(1, 30);
      request.priority = random.pick(-2, 2);
      request.client = std::to_string(random.pick(1, clients));
      model.add(request.id, request.prompt);
      expected[request.id] = request.prompt;
      EXPECT_TRUE(scheduler.add(std::move(request)).ok());
    }
    const PrefillBudget budget = random_budget(random);
    const StepPlan plan = scheduler.plan(budget);
    model.check(plan, budget, scheduler.load().preemptions);
    const StepResult result = ranks.run(plan, limits.max_num_batched_tokens);
    if (random.pick(0, 30) == 0) {
      scheduler.requeue_running();
      model.lose_all_blocks();
      ranks = CachedModel(limits.kv_blocks);
      continue;
    }
    if (random.pick(0, 20) == 0) {
      const auto id = static_cast<uint64_t>(random.pick(1, requests));
      if (scheduler.finish(id)) model.finish(id);
    }
    model.complete(plan, result);
    for (const TokenEvent& event : scheduler.complete(result)) {
      std::vector<int32_t>& tokens = expected.at(event.token.id);
      EXPECT_EQ(event.token.token_id, ranks.next_token(tokens)) << "of " << event.token.id;
      tokens.push_back(event.token.token_id);
      if (!event.finish) continue;
      EXPECT_TRUE(scheduler.finish(event.token.id));
      model.finish(event.token.id);
    }
    if (testing::Test::HasFailure()) return 0;
  }
  EXPECT_EQ(scheduler.load().used_kv_blocks, 0) << "blocks leaked";
  EXPECT_EQ(model.used_blocks(), 0);
  return scheduler.load().preemptions;
}

TEST(SchedulerModelTest, EveryPlanIsOneThatTheModelAllows) {
  const uint32_t sequences = narrow_breadth() ? 10'000 : 100'000;
  int64_t preemptions = 0;
  for (uint32_t seed = 0; seed < sequences; ++seed) {
    SCOPED_TRACE(seed);
    preemptions += live(seed);
    if (HasFailure()) return;
  }
  EXPECT_GT(preemptions, sequences / 100) << "the sequences no longer reach preemption";
}

}  // namespace
}  // namespace shoal
