#pragma once
#include <cstdint>
#include <span>

#include "kernels/kernel_table.h"
#include "runtime/base/sampling.h"

namespace shoal {

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
/// finite. Pure and thread-safe; the calling thread has called set_float_environment(). Cost: a
/// pass over the vocabulary, and a few more for sampling; no full sort unless top_k asks for most
/// of it. Preconditions: vocab >= 1; params as resolve_request leaves them.
SampledToken sample_token(std::span<const float> logits, const SamplingParams& params,
                          std::span<const int32_t> history, int32_t history_prompt_tokens,
                          int32_t position, const KernelTable& kernels);

/// The uniform number in (0, 1) behind one token's noise: SplitMix64 (Steele, Lea, Flood: Fast
/// Splittable Pseudorandom Number Generators, OOPSLA 2014), whose stream is chosen by (seed,
/// position) and whose index is the token id.
double sampling_uniform(uint64_t seed, int32_t position, int32_t token_id);

}  // namespace shoal
