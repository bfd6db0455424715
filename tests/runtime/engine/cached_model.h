#pragma once
#include <array>
#include <cstdint>
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include "runtime/base/kv_block.h"
#include "runtime/engine/step_plan.h"

namespace shoal {

/// Takes the place of the workers. Its paged cache holds token ids instead of keys and values, and
/// the next token of its "model" is a hash of everything that it reads back through the block
/// table. If a block is shared, lost or missing, the tokens that follow change.
class CachedModel {
 public:
  explicit CachedModel(int32_t blocks, int32_t vocab = 50)
      : vocab_(vocab), cache_(static_cast<size_t>(blocks)) {
    for (auto& block : cache_) block.fill(-1);
  }

  /// Runs a plan, and checks that the plan is consistent in itself.
  StepResult run(const StepPlan& plan, int32_t max_num_batched_tokens) {
    StepResult result;
    result.step = plan.step;
    size_t tokens = 0;
    std::set<int32_t> blocks_in_use;
    std::set<uint64_t> ids;
    for (const SequenceStep& step : plan.sequences) {
      EXPECT_TRUE(ids.insert(step.id).second) << "sequence " << step.id << " twice in a plan";
      EXPECT_FALSE(step.token_ids.empty());
      tokens += step.token_ids.size();
      const size_t end = static_cast<size_t>(step.first_position) + step.token_ids.size();
      EXPECT_EQ(step.block_table.size(), (end + kBlockTokens - 1) / kBlockTokens);
      for (const int32_t block : step.block_table) {
        EXPECT_TRUE(block >= 0 && static_cast<size_t>(block) < cache_.size());
        EXPECT_TRUE(blocks_in_use.insert(block).second) << "block " << block << " is shared";
      }
      for (size_t i = 0; i < step.token_ids.size(); ++i)
        slot(step, step.first_position + i) = step.token_ids[i];
      if (step.sample) result.tokens.push_back({step.id, next_token(step, end), 0, 0, {}});
    }
    EXPECT_LE(tokens, static_cast<size_t>(max_num_batched_tokens));
    return result;
  }

  /// The token that the model gives after these tokens.
  int32_t next_token(const std::vector<int32_t>& tokens) const {
    uint64_t hash = 1469598103934665603u;
    for (const int32_t token : tokens)
      hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
    return static_cast<int32_t>((hash >> 20) % static_cast<uint64_t>(vocab_));
  }

 private:
  int32_t& slot(const SequenceStep& step, size_t position) {
    return cache_.at(
        static_cast<size_t>(step.block_table.at(position / kBlockTokens)))[position % kBlockTokens];
  }
  int32_t next_token(const SequenceStep& step, size_t end) {
    std::vector<int32_t> tokens;
    for (size_t position = 0; position < end; ++position) tokens.push_back(slot(step, position));
    return next_token(tokens);
  }

  int32_t vocab_;
  std::vector<std::array<int32_t, kBlockTokens>> cache_;
};

}  // namespace shoal
