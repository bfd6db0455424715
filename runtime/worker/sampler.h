#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/base/sampling.h"

namespace shoal {

/// The memory that choosing a token takes. It is reused for every token, so that nothing is
/// allocated in a step. One thread at a time may use it.
class SamplerMemory {
 public:
  /// Takes and touches all that a vocabulary of this size can need.
  explicit SamplerMemory(size_t vocab);

  /// About how many bytes the constructor takes.
  static int64_t bytes(int64_t vocab);

  /// A token that may be drawn. weight: its log-probability up to a constant, after temperature;
  /// the best has 0.
  struct Candidate {
    double weight;
    int32_t id;
  };
  std::vector<Candidate> candidates;
  std::vector<float> cleaned;    ///< logits without NaN and infinities
  std::vector<float> penalized;  ///< scores
  std::vector<int32_t> ids;
  std::vector<int32_t> output_count;  ///< of each id
  std::vector<bool> seen;             ///< of each id
  std::vector<ChunkSum> chunks;
};

/// Chooses the next token from one row of logits [vocab], by id; SampledToken::id stays 0. The
/// order is that of vLLM (v1/sample/sampler.py): logprobs of the raw logits; repetition penalty
/// over history, then frequency and presence penalties over its output part; temperature (0: the
/// greatest, and of equals the lowest id); min-p; top-k; top-p; the draw.
///
/// history: every token so far, of which history_prompt_tokens are the prompt's (read only if a
/// penalty is set). position: the absolute position of the chosen token. The draw is the Gumbel-max
/// trick with noise hashed from (seed, position, token id), so it depends on nothing else: not on
/// the batch, the number of ranks, or earlier draws.
///
/// NaN and -inf logits count as the lowest finite float, +inf as the greatest; every logprob is
/// finite. The result depends on nothing else, and `memory` may hold anything; the calling thread
/// has called set_float_environment(). Cost: a pass over the vocabulary, and a few more for
/// sampling; no full sort unless top_k asks for most of it. Preconditions: 1 <= vocab <= that of
/// the memory; params as resolve_request leaves them.
SampledToken sample_token(std::span<const float> logits, const SamplingParams& params,
                          std::span<const int32_t> history, int32_t history_prompt_tokens,
                          int32_t position, const KernelTable& kernels, SamplerMemory& memory);

/// The uniform number in (0, 1) behind one token's noise: SplitMix64 (Steele, Lea, Flood: Fast
/// Splittable Pseudorandom Number Generators, OOPSLA 2014), whose stream is chosen by (seed,
/// position) and whose index is the token id.
double sampling_uniform(uint64_t seed, int32_t position, int32_t token_id);

}  // namespace shoal
