#include "runtime/worker/sampler.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "runtime/base/thread_pool.h"

namespace shoal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const KernelTable& kernels() {
  set_float_environment();
  return *find_kernels("reference").value();
}

SampledToken sample(const std::vector<float>& logits, const SamplingParams& params,
                    int32_t position = 0, const std::vector<int32_t>& history = {},
                    int32_t prompt_tokens = 0) {
  // All calls share one memory. So a test fails if a result depends on what an earlier token has
  // left in it.
  static SamplerMemory memory(262144);
  return sample_token(logits, params, history, prompt_tokens, position, kernels(), memory);
}

std::vector<float> random_logits(size_t vocab, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::vector<float> logits(vocab);
  // The steps are coarse, so that equal logits are common.
  for (float& logit : logits) logit = spread * (static_cast<float>(random() % 2001) / 1000 - 1);
  return logits;
}

/// The ids, ordered by (logit descending, id ascending).
std::vector<int32_t> ranking(const std::vector<float>& logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  return ids;
}

/// The tokens that may be drawn and their weights, computed with full sorts in double precision,
/// one filter after the other.
std::vector<double> naive_distribution(const std::vector<float>& logits,
                                       const SamplingParams& params) {
  const std::vector<int32_t> order = ranking(logits);
  const double best = logits[static_cast<size_t>(order[0])];
  std::vector<double> weight(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weight[i] = std::exp((logits[i] - best) / params.temperature);
    if (weight[i] < params.min_p) weight[i] = 0;
  }
  if (params.top_k > 0) {
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i)
      weight[static_cast<size_t>(order[i])] = 0;
  }
  double total = 0, sum = 0;
  for (const double w : weight) total += w;
  for (const int32_t id : order) {
    double& w = weight[static_cast<size_t>(id)];
    const bool crossed = sum >= params.top_p * total;
    sum += w;
    if (crossed && params.top_p < 1) w = 0;
  }
  total = 0;
  for (const double w : weight) total += w;
  for (double& w : weight) w /= total;
  return weight;
}

/// The definition of the draw, without shortcuts.
int32_t naive_draw(const std::vector<double>& probability, uint64_t seed, int32_t position) {
  double best = -HUGE_VAL;
  int32_t chosen = -1;
  for (size_t id = 0; id < probability.size(); ++id) {
    if (probability[id] == 0) continue;
    const double u = sampling_uniform(seed, position, static_cast<int32_t>(id));
    const double value = std::log(probability[id]) - std::log(-std::log(u));
    if (value > best) {
      best = value;
      chosen = static_cast<int32_t>(id);
    }
  }
  return chosen;
}

TEST(SamplerTest, GreedyTakesTheLowestIdOfEquals) {
  SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(sample({1, 5, 5, 2}, greedy).token_id, 1);
  EXPECT_EQ(sample({-0.f, 0.f}, greedy).token_id, 0);
  EXPECT_EQ(sample({7}, greedy).token_id, 0);
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> logits = random_logits(1000, seed);
    EXPECT_EQ(sample(logits, greedy).token_id, ranking(logits)[0]);
    const ArgmaxResult best = kernels().argmax(logits.data(), 1000);
    EXPECT_EQ(sample(logits, greedy).token_id, best.column)
        << "disagrees with the ranks' own argmax";
  }
}

TEST(SamplerTest, FiltersAndDrawAgreeWithTheNaiveDefinition) {
  std::mt19937 random(1);
  std::set<int32_t> drawn;
  for (uint32_t round = 0; round < 1500; ++round) {
    const std::vector<float> logits =
        random_logits(round % 5 == 0 ? 3000 : 1 + random() % 700, round);
    SamplingParams params;
    params.temperature = std::vector<float>{0.2f, 0.7f, 1, 2.5f}[random() % 4];
    if (random() % 2 == 0) params.top_k = static_cast<int32_t>(1 + random() % 400);
    if (random() % 2 == 0)
      params.top_p = std::vector<float>{1e-6f, 0.3f, 0.9f, 0.999f}[random() % 4];
    if (random() % 3 == 0) params.min_p = std::vector<float>{0.01f, 0.2f, 0.987f}[random() % 3];
    params.seed = round;
    const auto position = static_cast<int32_t>(random() % 5000);
    const int32_t got = sample(logits, params, position).token_id;
    ASSERT_EQ(got, naive_draw(naive_distribution(logits, params), params.seed, position))
        << "round " << round;
    drawn.insert(got);
  }
  EXPECT_GT(drawn.size(), 300u);
}

/// Chi-square test of the draws at positions 0 .. n-1 against the distribution. Unlikely tokens are
/// pooled.
void expect_distribution(const std::vector<float>& logits, SamplingParams params) {
  constexpr int kDraws = 40000;
  const std::vector<double> probability = naive_distribution(logits, params);
  std::vector<int> count(logits.size());
  for (int32_t position = 0; position < kDraws; ++position) {
    const int32_t id = sample(logits, params, position).token_id;
    ASSERT_GT(probability[static_cast<size_t>(id)], 0) << "token " << id << " was filtered out";
    ++count[static_cast<size_t>(id)];
  }
  double chi_square = 0, pooled_expected = 0, pooled = 0;
  int cells = 0;
  const auto add = [&](double observed, double expected) {
    chi_square += (observed - expected) * (observed - expected) / expected;
    ++cells;
  };
  for (size_t id = 0; id < logits.size(); ++id) {
    const double expected = probability[id] * kDraws;
    if (expected >= 10) {
      add(count[id], expected);
    } else {
      pooled_expected += expected;
      pooled += count[id];
    }
  }
  if (pooled_expected >= 10) add(pooled, pooled_expected);
  ASSERT_GT(cells, 2);
  // The degrees of freedom are the mean. The variance is twice that, and five deviations are
  // allowed.
  const double freedom = cells - 1;
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom));
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
  const std::vector<float> logits = random_logits(60, 7, 2);
  expect_distribution(logits, {.seed = 1});
  expect_distribution(logits, {.temperature = 0.5f, .seed = 2});
  expect_distribution(logits, {.temperature = 3, .top_k = 20, .seed = 3});
  expect_distribution(logits, {.top_p = 0.8f, .seed = 4});
  expect_distribution(logits, {.min_p = 0.1f, .seed = 5});
}

TEST(SamplerTest, DrawsOfOnePositionFollowTheDistributionOverSeeds) {
  constexpr int kDraws = 30000;
  const std::vector<float> logits(10, 0.f);
  std::vector<int> count(10);
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    ++count[static_cast<size_t>(sample(logits, {.seed = seed}, 17).token_id)];
  }
  double chi_square = 0;
  for (const int c : count) chi_square += (c - kDraws / 10.) * (c - kDraws / 10.) / (kDraws / 10.);
  EXPECT_LT(chi_square, 33.7);  // 9 degrees of freedom, p = 0.0001
}

TEST(SamplerTest, UniformNumbersAreInsideTheIntervalAndUncorrelated) {
  constexpr int kCount = 200000;
  double sum = 0, product = 0, lowest = 1, highest = 0;
  double previous = 0.5;
  for (int i = 0; i < kCount; ++i) {
    const double u = sampling_uniform(3, i / 500, i % 500);
    sum += u;
    product += (u - 0.5) * (previous - 0.5);
    previous = u;
    lowest = std::min(lowest, u);
    highest = std::max(highest, u);
  }
  EXPECT_GT(lowest, 0);
  EXPECT_LT(highest, 1);
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1 / 12. / kCount));
  EXPECT_NEAR(product / kCount, 0, 5 / 12. / std::sqrt(kCount));
}

TEST(SamplerTest, GeneratorIsFixedForGood) {
  // Users may have noted seeds, so their streams must not change with a release. This is SplitMix64
  // with its published constants.
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  EXPECT_EQ(mix(0x9e3779b97f4a7c15),
            0xe220a8397b1dcdafu);  // the first output of SplitMix64 from state 0
  const uint64_t stream = mix(0xe220a8397b1dcdaf + 0x9e3779b97f4a7c15);
  const double expected =
      (static_cast<double>(mix(stream + 0x9e3779b97f4a7c15) >> 12) + 0.5) / 4503599627370496.;
  EXPECT_EQ(sampling_uniform(0, 0, 0), expected);
}

TEST(SamplerTest, PenaltiesAreThoseOfTheDefinition) {
  // The ids are 0..3. The prompt contains 0 and 1; the output contains 1 twice and 2 once.
  const std::vector<float> logits = {4, 3.5f, -1, 2};
  const std::vector<int32_t> history = {0, 1,  1, 1,
                                        2, -5, 99};  // ids outside the vocabulary are ignored
  SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(sample(logits, greedy, 0, history, 2).token_id, 0);
  greedy.repetition_penalty = 1.5f;  // the logits become 2.67, 2.33, -1.5, 2
  EXPECT_EQ(sample(logits, greedy, 0, history, 2).token_id, 0);
  greedy.repetition_penalty = 2.5f;  // the logits become 1.6, 1.4, -2.5, 2
  EXPECT_EQ(sample(logits, greedy, 0, history, 2).token_id, 3);
  greedy = {.temperature = 0, .presence_penalty = -0.6f};  // the logits become 4, 4.1, -0.4, 2
  EXPECT_EQ(sample(logits, greedy, 0, history, 2).token_id, 1);
  greedy = {.temperature = 0, .frequency_penalty = -0.24f};  // 3.98 for id 1: two times 0.24
  EXPECT_EQ(sample(logits, greedy, 0, history, 2).token_id, 0);
  greedy.frequency_penalty = -0.26f;  // id 1 gets 4.02
  EXPECT_EQ(sample(logits, greedy, 0, history, 2).token_id, 1);
  // Tokens of the prompt do not count for presence, and here all of the history is prompt.
  greedy = {.temperature = 0, .presence_penalty = -0.6f};
  EXPECT_EQ(sample(logits, greedy, 0, history, 7).token_id, 0);
}

TEST(SamplerTest, LogprobsAreOfTheRawLogits) {
  for (const size_t vocab : {1u, 5u, 256u, 257u, 1500u}) {
    const std::vector<float> logits = random_logits(vocab, static_cast<uint32_t>(vocab));
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const std::vector<int32_t> order = ranking(logits);
    SamplingParams params{
        .temperature = 0.3f, .top_k = 4, .repetition_penalty = 1.7f, .seed = 5, .logprobs = 8};
    const SampledToken token = sample(logits, params, 3, {0}, 1);
    const auto exact = [&](int32_t id) { return logits[static_cast<size_t>(id)] - std::log(sum); };
    EXPECT_NEAR(token.logprob, exact(token.token_id), 1e-5);
    const auto rank = std::find(order.begin(), order.end(), token.token_id) - order.begin() + 1;
    EXPECT_EQ(token.rank, rank);
    ASSERT_EQ(token.top.size(), std::min<size_t>(8, vocab));
    for (size_t i = 0; i < token.top.size(); ++i) {
      EXPECT_EQ(token.top[i].token_id, order[i]);
      EXPECT_NEAR(token.top[i].logprob, exact(order[i]), 1e-5);
      if (order[i] == token.token_id) {
        EXPECT_EQ(token.top[i].logprob, token.logprob);
      }
    }
  }
}

TEST(SamplerTest, LogprobsOnlyWhenAskedFor) {
  const std::vector<float> logits = random_logits(100, 3);
  const SampledToken none = sample(logits, {.temperature = 0});
  EXPECT_EQ(none.logprob, 0);
  EXPECT_EQ(none.rank, 0);
  EXPECT_TRUE(none.top.empty());
  const SampledToken own = sample(logits, {.temperature = 0, .logprobs = 0});
  EXPECT_LT(own.logprob, 0);
  EXPECT_EQ(own.rank, 1);
  EXPECT_TRUE(own.top.empty());
  EXPECT_EQ(sample(logits, {.seed = 9}).token_id,
            sample(logits, {.seed = 9, .logprobs = 5}).token_id);
}

TEST(SamplerTest, OddLogitsGiveATokenAndFiniteLogprobs) {
  const std::vector<std::vector<float>> rows = {
      {kNan, kNan, kNan},      {-kInfinity, -kInfinity}, {kInfinity, 1, -kInfinity},
      {kNan, 2, kInfinity, 1}, {3e38f, -3e38f, 0},       {kNan, -5, -kInfinity},
      {kInfinity, kInfinity},
  };
  set_float_environment();
  SamplerMemory memory(4);
  for (const KernelTable* set : available_kernels()) {
    SCOPED_TRACE(set->name);
    for (const std::vector<float>& row : rows) {
      for (const float temperature : {0.f, 1e-30f, 1.f, 100.f}) {
        SamplingParams params{
            .temperature = temperature, .top_p = 0.9f, .top_k = 2, .repetition_penalty = 1.3f};
        params.min_p = 0.01f;
        params.logprobs = 3;
        const SampledToken token =
            sample_token(row, params, std::vector<int32_t>{0, 1}, 1, 1, *set, memory);
        ASSERT_GE(token.token_id, 0);
        ASSERT_LT(token.token_id, static_cast<int32_t>(row.size()));
        EXPECT_TRUE(std::isfinite(token.logprob));
        for (const TokenLogprob& top : token.top) EXPECT_TRUE(std::isfinite(top.logprob));
      }
    }
  }
  EXPECT_EQ(sample({kNan, 2, kInfinity, 1}, {.temperature = 0}).token_id, 2);
  EXPECT_EQ(sample({kNan, -5, -kInfinity}, {.temperature = 0}).token_id, 1);
}

TEST(SamplerTest, ALowTemperatureIsGreedyInTheLimit) {
  const std::vector<float> logits = random_logits(500, 11);
  std::vector<float> distinct = logits;
  for (size_t i = 0; i < distinct.size(); ++i) distinct[i] += 1e-4f * static_cast<float>(i % 7);
  distinct[123] = 9;
  EXPECT_EQ(sample(distinct, {.temperature = 1e-6f, .seed = 4}).token_id, 123);
}

TEST(SamplerTest, LargeVocabularyWithEveryFilter) {
  std::vector<float> logits = random_logits(262144, 12);
  logits[200000] = 60;
  const SamplingParams params{.top_p = 0.9f, .seed = 1, .logprobs = 64};
  const SampledToken token = sample(logits, params);
  EXPECT_EQ(token.token_id, 200000);
  EXPECT_EQ(token.top.size(), 64u);
  const std::vector<float> flat = random_logits(262144, 13, 0.5f);
  for (const float top_p : {0.5f, 1.f}) {
    const SamplingParams flat_params{.top_p = top_p, .seed = 3};
    EXPECT_EQ(sample(flat, flat_params, 9).token_id,
              naive_draw(naive_distribution(flat, flat_params), 3, 9));
  }
}

}  // namespace
}  // namespace shoal
