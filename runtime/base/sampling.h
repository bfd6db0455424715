#pragma once
#include <cstdint>
#include <vector>

// The parts of a request and of its result that the API, the scheduler and the ranks share.

namespace shoal {

/// How one token is chosen. Defaults: plain sampling from the model's distribution.
struct SamplingParams {
  float temperature = 1;  ///< 0: greedy
  float top_p = 1;
  int32_t top_k = 0;  ///< 0: off
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  int32_t logprobs = -1;  ///< -1: none; K >= 0: of the chosen token and of the K best
  bool has_penalty() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};
template <typename Archive>
void fields(Archive& archive, SamplingParams& s) {
  archive(s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty, s.presence_penalty,
          s.frequency_penalty, s.seed, s.logprobs);
}

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};
template <typename Archive>
void fields(Archive& archive, TokenLogprob& t) {
  archive(t.token_id, t.logprob);
}

/// The token chosen for one sequence.
struct SampledToken {
  uint64_t id = 0;  ///< of the sequence
  int32_t token_id = 0;
  float logprob = 0;              ///< of the raw logits; 0 unless asked for
  int32_t rank = 0;               ///< 1: the most likely; 0 unless asked for
  std::vector<TokenLogprob> top;  ///< the K best, best first
  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};
template <typename Archive>
void fields(Archive& archive, SampledToken& t) {
  archive(t.id, t.token_id, t.logprob, t.rank, t.top);
}

}  // namespace shoal
