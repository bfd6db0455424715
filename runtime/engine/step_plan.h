#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/archive.h"
#include "runtime/base/sampling.h"

// What the scheduler asks of a step, and what the step returns. Both cross the control channel as
// bytes.

namespace shoal {

/// One sequence's part of a step. Self-contained: a rank that has just started can continue any
/// sequence from it, once its earlier tokens have been prefilled again.
struct SequenceStep {
  uint64_t id = 0;
  std::vector<int32_t> token_ids;  ///< to process in this step
  int32_t first_position = 0;      ///< absolute position of token_ids[0]
  /// KV blocks of positions [0, first_position + token_ids.size()).
  std::vector<int32_t> block_table;
  bool sample = false;      ///< choose a token after the last one
  bool all_logits = false;  ///< return the logits of every token (shoal logits)
  SamplingParams sampling;
  /// Only if a penalty is set: every token so far, and how many of them belong to the prompt.
  std::vector<int32_t> history;
  int32_t history_prompt_tokens = 0;
  friend bool operator==(const SequenceStep&, const SequenceStep&) = default;
};
template <typename Archive>
void fields(Archive& archive, SequenceStep& s) {
  archive(s.id, s.token_ids, s.first_position, s.block_table, s.sample, s.all_logits, s.sampling,
          s.history, s.history_prompt_tokens);
}

struct StepPlan {
  uint64_t step = 0;
  std::vector<SequenceStep> sequences;
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};
template <typename Archive>
void fields(Archive& archive, StepPlan& p) {
  archive(p.step, p.sequences);
}

struct StepResult {
  uint64_t step = 0;
  std::vector<SampledToken> tokens;  ///< one for each sequence with sample set, in the plan's order
  std::vector<float> logits;  ///< for all_logits: [tokens, vocab] of each such sequence in turn
};
template <typename Archive>
void fields(Archive& archive, StepResult& r) {
  archive(r.step, r.tokens, r.logits);
}

}  // namespace shoal
