#include "runtime/worker/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/base/ieee_math.h"

namespace shoal {
namespace {

using Candidate = SamplerMemory::Candidate;

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;  // SplitMix64's increment, 2^64 / golden ratio

/// SplitMix64's output function: a bijection whose every output bit depends on every input bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The start of the stream of one draw. It is mixed twice, so that neighbouring seeds or positions
/// share nothing.
uint64_t stream_of(uint64_t seed, int32_t position) {
  return mix(mix(seed + kGamma) + kGamma * (static_cast<uint64_t>(position) + 1));
}

/// 52 random bits. With more, (bits + 0.5) / 2^bits could round to 1, for which the noise is
/// infinite.
uint64_t bits_of(uint64_t stream, int32_t id) {
  return mix(stream + kGamma * (static_cast<uint64_t>(id) + 1)) >> 12;
}

double uniform_of(uint64_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

float finite(double value) {
  if (!(value > kLowest)) return kLowest;  // NaN too
  return static_cast<float>(
      std::min(value, static_cast<double>(std::numeric_limits<float>::max())));
}

bool all_finite(std::span<const float> values) {
  // |x| <= max fails for NaN and both infinities. Counting without a branch lets the compiler
  // vectorise the loop.
  int64_t bad = 0;
  for (const float value : values) bad += !(std::fabs(value) <= std::numeric_limits<float>::max());
  return bad == 0;
}

size_t chunks_of(size_t vocab) {
  return (vocab + kVocabChunk - 1) / kVocabChunk;
}

/// log(sum(exp(x))), from the sums that the kernels return for each chunk, folded in id order.
double log_sum_exp(std::span<const float> logits, const KernelTable& kernels,
                   SamplerMemory& memory) {
  std::vector<ChunkSum>& chunks = memory.chunks;
  chunks.resize(chunks_of(logits.size()));
  kernels.chunk_sums(logits.data(), static_cast<int64_t>(logits.size()), chunks.data());
  double max = kLowest;
  for (const ChunkSum& chunk : chunks) max = std::max<double>(max, chunk.max);
  double sum = 0;
  for (const ChunkSum& chunk : chunks) sum += chunk.sum * ieee::exp(chunk.max - max);
  return max + ieee::log(sum);
}

void add_logprobs(std::span<const float> logits, int32_t count, const KernelTable& kernels,
                  SamplerMemory& memory, SampledToken* token) {
  const double normalizer = log_sum_exp(logits, kernels, memory);
  const auto vocab = static_cast<int32_t>(logits.size());
  const auto chosen = static_cast<size_t>(token->token_id);
  const float own = logits[chosen];
  const auto logprob = [normalizer](float logit) { return finite(logit - normalizer); };
  token->logprob = logprob(own);
  const auto greater = std::ranges::count_if(logits, [own](float logit) { return logit > own; });
  const auto equal_before = std::ranges::count(logits.first(chosen), own);
  token->rank = static_cast<int32_t>(1 + greater + equal_before);

  if (count <= 0) return;
  std::vector<int32_t> best(static_cast<size_t>(std::min(count, vocab)));
  const auto better = [logits](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<int32_t>& ids = memory.ids;
  ids.resize(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort_copy(ids.begin(), ids.end(), best.begin(), best.end(), better);
  for (const int32_t id : best)
    token->top.push_back({id, logprob(logits[static_cast<size_t>(id)])});
}

/// The repetition penalty is that of CTRL (Keskar et al. 2019) and Hugging Face: it moves a score
/// towards less likely, whether the score is above or below zero. Presence and frequency penalties
/// are as OpenAI's API defines them.
void apply_penalties(const SamplingParams& params, std::span<const int32_t> history,
                     int32_t prompt_tokens, SamplerMemory& memory) {
  std::vector<float>* const scores = &memory.penalized;
  std::vector<bool>& seen = memory.seen;
  std::vector<int32_t>& output_count = memory.output_count;
  seen.assign(scores->size(), false);
  output_count.assign(scores->size(), 0);
  for (size_t i = 0; i < history.size(); ++i) {
    const auto id = static_cast<size_t>(history[i]);
    if (id >= scores->size()) continue;
    seen[id] = true;
    output_count[id] += i >= static_cast<size_t>(prompt_tokens);
  }
  for (const int32_t token : history) {
    const auto id = static_cast<size_t>(token);
    if (id >= scores->size() || !seen[id]) continue;
    seen[id] = false;  // once per distinct id
    float score = (*scores)[id];
    score = score > 0 ? score / params.repetition_penalty : score * params.repetition_penalty;
    score -= params.frequency_penalty * static_cast<float>(output_count[id]);
    score -= output_count[id] > 0 ? params.presence_penalty : 0;
    (*scores)[id] = finite(score);
  }
}

bool better(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

/// Lists the tokens that min-p leaves, in id order. The best always stays.
void find_candidates(std::span<const float> scores, float best, const SamplingParams& params,
                     std::vector<Candidate>* candidates) {
  const double inverse = 1 / static_cast<double>(params.temperature);
  const double least = params.min_p > 0 ? ieee::log(std::min<double>(params.min_p, 1)) : -HUGE_VAL;
  candidates->clear();
  for (size_t id = 0; id < scores.size(); ++id) {
    const double weight = (static_cast<double>(scores[id]) - best) * inverse;
    if (weight >= least) candidates->push_back({weight, static_cast<int32_t>(id)});
  }
}

/// Keeps the k best, sorted; changes nothing if there are not more than k.
void keep_top_k(int32_t k, std::vector<Candidate>* candidates) {
  if (k <= 0 || static_cast<size_t>(k) >= candidates->size()) return;
  const auto end = candidates->begin() + k;
  std::partial_sort(candidates->begin(), end, candidates->end(), better);
  candidates->erase(end, candidates->end());
}

/// Keeps the shortest list of best candidates whose probability reaches top_p, including the one
/// that crosses it. The total is summed in the order of `candidates`, and the list best first, so
/// that both depend on the row alone.
void keep_top_p(float top_p, std::vector<Candidate>* candidates) {
  if (top_p >= 1) return;
  double total = 0;
  for (const Candidate& candidate : *candidates) total += ieee::exp(candidate.weight);
  const double target = top_p * total;
  // Candidates that all together make up less than half of the rest, 1 - top_p, come after the
  // crossing, so they need not be sorted. (A half leaves far more room than rounding needs.)
  const double least =
      ieee::log(0.5 * (1 - top_p) * total / static_cast<double>(candidates->size()));
  std::erase_if(*candidates,
                [least](const Candidate& candidate) { return candidate.weight < least; });

  double sum = 0;
  // Sort piece by piece, because the best few hundred nearly always hold most of the probability.
  auto sorted = candidates->begin();
  for (ptrdiff_t piece = 256; sorted != candidates->end(); piece *= 4) {
    const auto end = sorted + std::min(piece, candidates->end() - sorted);
    if (end != candidates->end()) std::nth_element(sorted, end, candidates->end(), better);
    std::sort(sorted, end, better);
    for (; sorted != end; ++sorted) {
      sum += ieee::exp(sorted->weight);
      if (sum >= target) {
        candidates->erase(sorted + 1, candidates->end());
        return;
      }
    }
  }
}

/// The Gumbel-max trick: argmax of weight - log(-log(u)) is a draw from softmax(weight). If values
/// are equal, the lowest id wins.
int32_t draw(std::span<const Candidate> candidates, uint64_t seed, int32_t position) {
  const uint64_t stream = stream_of(seed, position);
  double best = -HUGE_VAL;
  int32_t chosen = candidates.front().id;
  for (const Candidate& candidate : candidates) {
    const uint64_t bits = bits_of(stream, candidate.id);
    // -log(-log(u)) <= -log(1 - u) < (z + 1) log 2, where 1 - u has z leading zero bits. By this
    // bound most tokens lose here without a logarithm. 1e-9 covers the rounding.
    const int leading_zeros = std::countl_zero(~(bits << 12));
    if (candidate.weight + (leading_zeros + 1) * 0.6931471805599453 + 1e-9 < best) continue;
    const double value = candidate.weight - ieee::log(-ieee::log(uniform_of(bits)));
    if (value > best || (value == best && candidate.id < chosen)) {
      best = value;
      chosen = candidate.id;
    }
  }
  return chosen;
}

}  // namespace

// The values are written, and not only reserved, so that every page is there.
SamplerMemory::SamplerMemory(size_t vocab)
    : candidates(vocab),
      cleaned(vocab),
      penalized(vocab),
      ids(vocab),
      output_count(vocab),
      seen(vocab),
      chunks(chunks_of(vocab)) {}

int64_t SamplerMemory::bytes(int64_t vocab) {
  const auto each =
      static_cast<int64_t>(sizeof(Candidate) + 2 * sizeof(float) + 2 * sizeof(int32_t));
  const auto chunks = static_cast<int64_t>(chunks_of(static_cast<size_t>(vocab)));
  return vocab * each + vocab / 8 + chunks * static_cast<int64_t>(sizeof(ChunkSum));
}

double sampling_uniform(uint64_t seed, int32_t position, int32_t token_id) {
  return uniform_of(bits_of(stream_of(seed, position), token_id));
}

SampledToken sample_token(std::span<const float> logits, const SamplingParams& params,
                          std::span<const int32_t> history, int32_t history_prompt_tokens,
                          int32_t position, const KernelTable& kernels, SamplerMemory& memory) {
  if (!all_finite(logits)) {
    memory.cleaned.clear();
    for (const float logit : logits) memory.cleaned.push_back(finite(logit));
    logits = memory.cleaned;
  }
  std::span<const float> scores = logits;
  if (params.has_penalty()) {
    memory.penalized.assign(logits.begin(), logits.end());
    apply_penalties(params, history, history_prompt_tokens, memory);
    scores = memory.penalized;
  }
  const ArgmaxResult best = kernels.argmax(scores.data(), static_cast<int64_t>(scores.size()));

  SampledToken token;
  if (params.temperature > 0) {
    std::vector<Candidate>& candidates = memory.candidates;
    find_candidates(scores, best.value, params, &candidates);
    keep_top_k(params.top_k, &candidates);
    keep_top_p(params.top_p, &candidates);
    token.token_id = draw(candidates, params.seed, position);
  } else {
    token.token_id = best.column;
  }
  if (params.logprobs >= 0) add_logprobs(logits, params.logprobs, kernels, memory, &token);
  return token;
}

}  // namespace shoal
