#include "tests/gpu/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/args.h"
#include "kernels/reference/exp.h"
#include "kernels/reference/lane_sums.h"
#include "tests/gpu/chain.h"

namespace shoal::gpu {
namespace {

/// The place of a block that does not exist, far from all memory.
constexpr int32_t kNowhere = 1 << 28;

size_t row_of(const Tokens& tokens, int sequence, int position) {
  return static_cast<size_t>(sequence) * static_cast<size_t>(tokens.positions) +
         static_cast<size_t>(position);
}
int first_key(const Heads& heads, int position) {
  return heads.window > 0 ? std::max(0, position - heads.window + 1) : 0;
}
const float* of_kv_head(const std::vector<float>& from, const Heads& heads, const Tokens& tokens,
                        int sequence, int position, int kv_head) {
  const size_t columns = static_cast<size_t>(heads.kv_heads()) * heads.head_dim;
  return &from[row_of(tokens, sequence, position) * columns +
               static_cast<size_t>(kv_head) * heads.head_dim];
}
const float* q_of(const Heads& heads, const Tokens& tokens, int sequence, int position, int head) {
  return &tokens.q[row_of(tokens, sequence, position) * heads.columns() +
                   static_cast<size_t>(head) * heads.head_dim];
}

bool is_idle(const PagedStep& step, int row) {
  const auto at = static_cast<size_t>(row);
  return step.sequence[at] < 0 || step.sequence[at] >= static_cast<int>(step.first_row.size()) ||
         step.position[at] < 0 || step.position[at] >= step.table_stride * kBlockTokens;
}

/// Where the step's rows find their keys and values, and nothing else.
std::vector<std::byte> cache_of(const Heads& heads, const Tokens& tokens, const PagedStep& step) {
  const int d = heads.head_dim;
  std::vector<float> cache(cache_elements(step, heads.kv_heads(), d), std::nanf(""));
  for (size_t i = 0; i < step.first_row.size(); ++i) {
    const auto sequence = static_cast<int>(i);
    const int first = step.position[static_cast<size_t>(step.first_row[i])];
    const int end = std::min(first + step.row_count[i], step.table_stride * kBlockTokens);
    for (int key = first_key(heads, first); key < end; ++key) {
      for (int kv_head = 0; kv_head < heads.kv_heads(); ++kv_head) {
        const auto put = [&](const std::vector<float>& from, bool value) {
          float* const to =
              &cache[place_in_cache(step, sequence, key, kv_head, value, heads.kv_heads(), d)];
          std::fill_n(to, row_elements(d), 0.0f);
          std::copy_n(of_kv_head(from, heads, tokens, sequence, key, kv_head), d, to);
        };
        put(tokens.k, false);
        put(tokens.v, true);
      }
    }
  }
  return encoded(cache, heads.type);
}

PagedStep without_unseen_blocks(const Heads& heads, PagedStep step) {
  for (size_t i = 0; i < step.first_row.size(); ++i) {
    const int first = step.position[static_cast<size_t>(step.first_row[i])];
    const int begin = first_key(heads, first) / kBlockTokens;
    const int end = (first + step.row_count[i] - 1) / kBlockTokens + 1;
    for (int block = 0; block < step.table_stride; ++block) {
      if (block < begin || block >= end)
        step.block_table[i * static_cast<size_t>(step.table_stride) + block] = kNowhere;
    }
  }
  return step;
}

std::vector<std::byte> q_rows(const Heads& heads, const Tokens& tokens, const PagedStep& step,
                              int64_t stride) {
  std::vector<float> rows(static_cast<size_t>(step.rows() * stride), std::nanf(""));
  for (int row = 0; row < step.rows(); ++row) {
    if (is_idle(step, row)) continue;
    const auto at = static_cast<size_t>(row);
    const float* from = q_of(heads, tokens, step.sequence[at], step.position[at], 0);
    float* to = &rows[at * static_cast<size_t>(stride)];
    for (int head = 0; head < heads.count(); ++head, from += heads.head_dim) {
      std::fill_n(to, row_elements(heads.head_dim), 0.0f);
      std::copy_n(from, heads.head_dim, to);
      to += row_elements(heads.head_dim);
    }
  }
  return encoded(rows, activation_dtype(heads.type));
}

int most_chunks(const PagedStep& step) {
  const int most = *std::max_element(step.position.begin(), step.position.end());
  return most / kChunkTokens + 1;
}

/// The softmax of a row and head over some chunks.
struct Softmax {
  float max = 0, sum = 0;
  std::vector<float> out;
};

/// The scores of a chunk.
void chunk_scores(const emulator::TensorCore& core, const Heads& heads, const Tokens& tokens,
                  int sequence, int kv_head, const float* q, Range keys, float* scores) {
  for (int key = keys.begin; key < keys.end; ++key) {
    const float* k = of_kv_head(tokens.k, heads, tokens, sequence, key, kv_head);
    scores[key % kChunkTokens] = chain_sum(core, heads.type, k, q, heads.head_dim) * heads.scale();
  }
}

/// P.V of a chunk.
std::vector<float> chunk_values(const emulator::TensorCore& core, const Heads& heads,
                                const Tokens& tokens, int sequence, int kv_head, Range keys,
                                const float* p) {
  std::vector<float> out(static_cast<size_t>(heads.head_dim));
  for (size_t dim = 0; dim < out.size(); ++dim) {
    float v[kChunkTokens] = {};
    for (int key = keys.begin; key < keys.end; ++key)
      v[key % kChunkTokens] = of_kv_head(tokens.v, heads, tokens, sequence, key, kv_head)[dim];
    out[dim] = chain_sum(core, heads.type, v, p, kChunkTokens);
    if (heads.type == Dtype::kF32) out[dim] += 0.0f;
  }
  return out;
}

/// A number as the products take it.
float as_multiplied(Dtype type, float value) {
  return type == Dtype::kF16 ? rounded_to_tf32(value) : rounded_to(value, type);
}

Softmax chunk_softmax(const emulator::TensorCore& core, const Heads& heads, const Tokens& tokens,
                      int sequence, int kv_head, const float* q, Range keys) {
  float p[kChunkTokens] = {};
  chunk_scores(core, heads, tokens, sequence, kv_head, q, keys, p);
  Softmax chunk;
  chunk.max = -std::numeric_limits<float>::infinity();
  for (int key = keys.begin; key < keys.end; ++key)
    chunk.max = std::max(chunk.max, p[key % kChunkTokens]);
  for (int key = keys.begin; key < keys.end; ++key)
    p[key % kChunkTokens] =
        as_multiplied(heads.type, reference::exp(p[key % kChunkTokens] - chunk.max));
  chunk.out = chunk_values(core, heads, tokens, sequence, kv_head, keys, p);
  chunk.sum = reference::sum_of_four_vectors(p);
  return chunk;
}

void fold(const Softmax& chunk, Softmax* all) {
  const float merged = std::max(all->max, chunk.max);
  const float old_scale = reference::exp(all->max - merged);
  const float new_scale = reference::exp(chunk.max - merged);
  for (size_t i = 0; i < all->out.size(); ++i)
    all->out[i] = std::fma(all->out[i], old_scale, chunk.out[i] * new_scale);
  all->sum = std::fma(all->sum, old_scale, chunk.sum * new_scale);
  all->max = merged;
}

void expected_head(const emulator::TensorCore& core, const Heads& heads, const Tokens& tokens,
                   int sequence, int position, int kv_head, int head, float* out) {
  const int first = first_key(heads, position);
  const float* q = q_of(heads, tokens, sequence, position, head);
  Softmax all;
  for (int chunk = first / kChunkTokens * kChunkTokens; chunk <= position; chunk += kChunkTokens) {
    const Range keys{std::max(chunk, first), std::min(chunk + kChunkTokens, position + 1)};
    const Softmax next = chunk_softmax(core, heads, tokens, sequence, kv_head, q, keys);
    if (chunk <= first) {
      all = next;
    } else {
      fold(next, &all);
    }
  }
  for (size_t i = 0; i < all.out.size(); ++i)
    out[i] = rounded_to(all.out[i] / all.sum, activation_dtype(heads.type));
}

Dtype out_dtype_of(const ShoalAttention& args) {
  return args.cache.type == kShoalBf16 ? Dtype::kBf16 : Dtype::kF32;
}

/// split_chunks: 0 if the chunks are not split.
ShoalAttention prepare(Bench& bench, const Heads& heads, const Tokens& tokens,
                       const PagedStep& step, int split_chunks) {
  ShoalAttention args{};
  args.step = put_step(bench, without_unseen_blocks(heads, step));
  args.cache = {bench.put(cache_of(heads, tokens, step)), shoal_type(heads.type), heads.kv_heads(),
                heads.head_dim};
  args.heads = heads.count();
  std::copy(heads.begin.begin(), heads.begin.end(), args.head_begin);
  args.window = heads.window;
  args.scale = heads.scale();
  args.q_stride = heads.count() * row_elements(heads.head_dim) + 8;
  args.q = bench.put(q_rows(heads, tokens, step, args.q_stride));
  args.out_stride = out_stride_of(heads);
  args.out = bench.poisoned<std::byte>((static_cast<size_t>(step.rows() * args.out_stride) + 1) *
                                       dtype_bytes(out_dtype_of(args)));
  args.split_chunks = split_chunks;
  args.scratch_floats = bench.module().attention_scratch_floats(step.rows(), args.heads,
                                                                heads.head_dim, split_chunks);
  if (split_chunks > 0)
    args.scratch = bench.poisoned<float>(static_cast<size_t>(args.scratch_floats));
  return args;
}

Attended run(Bench& bench, const ShoalAttention& args, int way) {
  const auto elements = static_cast<size_t>(args.step.rows * args.out_stride);
  bench.finish(way < 0 ? bench.module().attention(&args, bench.stream())
                       : bench.module().attention_with(&args, way, bench.stream()),
               "attention");
  const auto* const out = static_cast<const std::byte*>(args.out);
  const Dtype type = out_dtype_of(args);
  Attended attended{"", decoded(bench.get(out, (elements + 1) * dtype_bytes(type)), type)};
  attended.wrong = bench.wrong();
  if (bench.ok() && !std::isnan(attended.out.back())) attended.wrong = "the end was overwritten";
  attended.out.pop_back();
  return attended;
}

}  // namespace

float Heads::scale() const {
  return 1.0f / std::sqrt(static_cast<float>(head_dim));
}

std::string Heads::text() const {
  return cat(count(), " heads on ", kv_heads(), " of ", head_dim, ", window ", window);
}

Tokens make_tokens(const Heads& heads, int sequences, int positions, uint64_t seed,
                   float sharpness) {
  const auto rows = static_cast<size_t>(sequences) * static_cast<size_t>(positions);
  const size_t columns = rows * heads.kv_heads() * heads.head_dim;
  const auto rounded = [](const std::vector<float>& values, Dtype type) {
    return decoded(encoded(values, type), type);
  };
  Tokens tokens{positions, floats(rows * heads.columns(), seed),
                rounded(floats(columns, seed + 1), heads.type),
                rounded(floats(columns, seed + 2), heads.type)};
  for (float& value : tokens.q) value *= sharpness;
  tokens.q = rounded(tokens.q, activation_dtype(heads.type));
  return tokens;
}

Share share_of(const Heads& heads, const Tokens& tokens, int begin, int end) {
  Share share{{{0}, heads.head_dim, heads.window, heads.type}, {tokens.positions, {}, {}, {}}};
  const auto d = static_cast<size_t>(heads.head_dim);
  const auto kept = [&](int g) {
    return Range{std::clamp(begin, heads.begin[g], heads.begin[g + 1]),
                 std::clamp(end, heads.begin[g], heads.begin[g + 1])};
  };
  for (int g = 0; g < heads.kv_heads(); ++g) {
    if (!kept(g).empty()) share.heads.begin.push_back(kept(g).end - begin);
  }
  const size_t q_columns = heads.columns(), kv_columns = heads.kv_heads() * d;
  for (size_t row = 0; row * q_columns < tokens.q.size(); ++row) {
    const float* q = &tokens.q[row * q_columns];
    share.tokens.q.insert(share.tokens.q.end(), q + begin * d, q + end * d);
    for (int g = 0; g < heads.kv_heads(); ++g) {
      if (kept(g).empty()) continue;
      const size_t at = row * kv_columns + g * d;
      share.tokens.k.insert(share.tokens.k.end(), &tokens.k[at], &tokens.k[at] + d);
      share.tokens.v.insert(share.tokens.v.end(), &tokens.v[at], &tokens.v[at] + d);
    }
  }
  return share;
}

Attended attend(OneDevice& one, const Heads& heads, const Tokens& tokens, const PagedStep& step,
                int way) {
  Bench bench(one);
  const bool split = way == -2 || way >= bench.module().attention_ways() / 2;
  return run(bench, prepare(bench, heads, tokens, step, split ? most_chunks(step) : 0), way);
}

Attended attend_with_room(OneDevice& one, const Heads& heads, const Tokens& tokens,
                          const PagedStep& step, int chunks) {
  Bench bench(one);
  return run(bench, prepare(bench, heads, tokens, step, chunks), -1);
}

std::vector<Attended> attend_again(OneDevice& one, const Heads& heads, const Tokens& tokens,
                                   const std::vector<PagedStep>& steps) {
  Bench bench(one);
  const ShoalAttention args =
      prepare(bench, heads, tokens, steps.front(), most_chunks(steps.back()));
  std::vector<Attended> all;
  for (const PagedStep& step : steps) {
    // A replayed graph has stored only the addresses and not the values, so new values are copied
    // to the same addresses.
    const auto renew = [&](const auto* at, const auto& values) {
      bench.renew(const_cast<void*>(static_cast<const void*>(at)), values);
    };
    renew(args.step.position, step.position);
    renew(args.step.sequence, step.sequence);
    renew(args.step.first_row, step.first_row);
    renew(args.step.row_count, step.row_count);
    renew(args.step.block_table, without_unseen_blocks(heads, step).block_table);
    renew(args.cache.data, cache_of(heads, tokens, step));
    renew(args.q, q_rows(heads, tokens, step, args.q_stride));
    all.push_back(run(bench, args, -1));
  }
  return all;
}

std::vector<float> expected_step(const emulator::TensorCore& core, const Heads& heads,
                                 const Tokens& tokens, const PagedStep& step) {
  const auto stride = static_cast<size_t>(out_stride_of(heads));
  std::vector<float> out(static_cast<size_t>(step.rows()) * stride, 0);
  for (int row = 0; row < step.rows(); ++row) {
    if (is_idle(step, row)) continue;
    const auto at = static_cast<size_t>(row);
    for (int kv_head = 0; kv_head < heads.kv_heads(); ++kv_head) {
      for (int head = heads.begin[kv_head]; head < heads.begin[kv_head + 1]; ++head) {
        expected_head(core, heads, tokens, step.sequence[at], step.position[at], kv_head, head,
                      &out[at * stride + static_cast<size_t>(head) * heads.head_dim]);
      }
    }
  }
  return out;
}

std::string compare_with_double(const Heads& heads, const Tokens& tokens, int sequence,
                                int position, const float* row) {
  const auto d = static_cast<size_t>(heads.head_dim);
  // Rounding loses at most this, of P and of the result. A tensor core cuts its sums, too.
  const double loses = heads.type == Dtype::kBf16  ? 1.0 / 256
                       : heads.type == Dtype::kF16 ? 1.0 / 2048
                                                   : 0;
  const double sums_lose = heads.type == Dtype::kF32 ? 1e-5 : 1e-4;
  for (int g = 0; g < heads.kv_heads(); ++g) {
    for (int head = heads.begin[g]; head < heads.begin[g + 1]; ++head) {
      const float* q = q_of(heads, tokens, sequence, position, head);
      double total = 0;
      std::vector<double> out(d), size(d);
      for (int key = first_key(heads, position); key <= position; ++key) {
        const float* k = of_kv_head(tokens.k, heads, tokens, sequence, key, g);
        const float* v = of_kv_head(tokens.v, heads, tokens, sequence, key, g);
        double score = 0;
        for (size_t i = 0; i < d; ++i)
          score += double{as_multiplied(heads.type, q[i])} * double{k[i]};
        const double weight = std::exp(score * double{heads.scale()});
        total += weight;
        for (size_t i = 0; i < d; ++i) {
          out[i] += weight * double{v[i]};
          size[i] += weight * std::abs(double{v[i]});
        }
      }
      for (size_t i = 0; i < d; ++i) {
        const double got = double{row[head * d + i]}, wanted = out[i] / total;
        const double may = size[i] / total * (loses + sums_lose) + std::abs(wanted) * loses;
        if (!(std::abs(got - wanted) <= may))
          return cat("position ", position, ", head ", head, ": ", got, " for ", wanted);
      }
    }
  }
  return "";
}

}  // namespace shoal::gpu
