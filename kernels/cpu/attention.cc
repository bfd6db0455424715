#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

// A task is up to kTaskRows (row, head) pairs that read the same kv head, so that they share the
// loads of its tiles. The result of a pair does not depend on the other pairs in its task, because
// every sum is its own chain over its own keys.

namespace shoal::SHOAL_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kTaskRows = 4;      // 4 pairs x 4 vectors of sums fill half of 32 registers
constexpr int kBlocksAtOnce = 4;  // of keys, in q.k
constexpr int kVecsAtOnce = 4;    // of head_dim, in p.v
#else
// 2 pairs x 2 vectors fill half of AVX2's 16 registers (two per vector) and of NEON's 32 (four).
constexpr int kTaskRows = 2;
constexpr int kBlocksAtOnce = 2;
constexpr int kVecsAtOnce = 2;
#endif
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;
static_assert(kBlockTokens == kLanes, "a block's keys are one vector");

/// One (row, head): where it reads and writes, the keys it sees and its softmax so far.
struct Query {
  const float* q;
  int64_t out;  // element offset
  int first, end;
  float max, sum;
  bool begun;
};

/// The keys of a chunk that a query sees, relative to the chunk.
struct Keys {
  int begin, end;
  bool empty() const { return begin >= end; }
};
inline Keys keys_of(const Query& query, int chunk) {
  const int begin = query.first - chunk, end = query.end - chunk;
  return {begin < 0 ? 0 : begin, end > kChunkTokens ? kChunkTokens : end};
}

struct Scratch {
  alignas(64) float p[kTaskRows][kChunkTokens];         // scores, then probabilities
  alignas(64) float chunk_out[kTaskRows][kMaxHeadDim];  // P.V of the chunk
  alignas(64) float out[kTaskRows][kMaxHeadDim];        // P.V of all chunks so far
};

/// p[row][key] = scale * q[row] . k[key] for Blocks blocks of keys. Keys are in lanes, and head_dim
/// is summed one element after the other.
template <int Rows, int Blocks, typename Element>
inline void scores(const Query* queries, const Element* const* tiles, int block, int d, float scale,
                   float (*p)[kChunkTokens]) {
  Vec sums[Rows][Blocks];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) sums[r][b] = zero();
  }
  for (int64_t i = 0; i < d; ++i) {
    Vec k[Blocks];
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) k[b] = load(tiles[block + b] + i * kBlockTokens);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec q = set1(queries[r].q[i]);
#pragma GCC unroll 4
      for (int b = 0; b < Blocks; ++b) sums[r][b] = fma(q, k[b], sums[r][b]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b)
      store(p[r] + (block + b) * kBlockTokens, mul(sums[r][b], set1(scale)));
  }
}

/// Computes the scores of the blocks [begin, end) of a chunk. Blocks outside of it are seen by no
/// query, so they are not read and need not exist.
template <int Rows, typename Element>
inline void chunk_scores(const Query* queries, const Element* const* tiles, int begin, int end,
                         int d, float scale, float (*p)[kChunkTokens]) {
  int b = begin;
  for (; b + kBlocksAtOnce <= end; b += kBlocksAtOnce)
    scores<Rows, kBlocksAtOnce>(queries, tiles, b, d, scale, p);
  for (; b < end; ++b) scores<Rows, 1>(queries, tiles, b, d, scale, p);
}

/// Turns one query's scores of a chunk into exp(score - max), or into exactly 0 if the query does
/// not see the key. Previous values of masked lanes have no effect, even NaN from memory that was
/// never written. Returns the maximum and the sum.
void softmax(Keys keys, float* p, float* max_out, float* sum_out) {
  Vec best = set1(-__builtin_inff());
  for (int b = 0; b < kChunkBlocks; ++b) {
    const Mask seen = lanes_between(keys.begin - b * kLanes, keys.end - b * kLanes);
    best = max(best, select(seen, load(p + b * kLanes), set1(-__builtin_inff())));
  }
  const float greatest = max_of(best);
  Vec parts[kChunkBlocks];
  for (int b = 0; b < kChunkBlocks; ++b) {
    const Mask seen = lanes_between(keys.begin - b * kLanes, keys.end - b * kLanes);
    parts[b] = select(seen, exp(sub(load(p + b * kLanes), set1(greatest))), zero());
    store(p + b * kLanes, parts[b]);
  }
  static_assert(kChunkBlocks == 4);
  *max_out = greatest;
  *sum_out = sum_of(add(add(parts[0], parts[1]), add(parts[2], parts[3])));
}

/// out[row][i ...] += p[row][key] * v[key][i ...] for the keys in order. Vecs vectors of head_dim
/// are in lanes.
template <int Rows, int Vecs, typename Element>
inline void weigh(const Element* const* tiles, int d, Keys keys, int64_t i, int lanes,
                  const float (*p)[kChunkTokens], float (*out)[kMaxHeadDim]) {
  Vec sums[Rows][Vecs];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; ++j) sums[r][j] = load(out[r] + i + j * kLanes);
  }
  for (int key = keys.begin; key < keys.end; ++key) {
    const Element* v =
        tiles[key / kBlockTokens] + int64_t{d} * (kBlockTokens + key % kBlockTokens) + i;
    Vec values[Vecs];
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; ++j) values[j] = load(v + j * kLanes, lanes);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec weight = set1(p[r][key]);
#pragma GCC unroll 4
      for (int j = 0; j < Vecs; ++j) sums[r][j] = fma(weight, values[j], sums[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; ++j) store(out[r] + i + j * kLanes, sums[r][j]);
  }
}

/// Weighs the keys for all of head_dim.
template <int Rows, typename Element>
void weigh_keys(const Element* const* tiles, int d, Keys keys, const float (*p)[kChunkTokens],
                float (*out)[kMaxHeadDim]) {
  if (keys.empty()) return;
  int i = 0;
  for (; i + kVecsAtOnce * kLanes <= d; i += kVecsAtOnce * kLanes) {
    weigh<Rows, kVecsAtOnce>(tiles, d, keys, i, kLanes, p, out);
  }
  for (; i + kLanes <= d; i += kLanes) weigh<Rows, 1>(tiles, d, keys, i, kLanes, p, out);
  if (i < d) weigh<Rows, 1>(tiles, d, keys, i, d - i, p, out);
}

/// P.V of a chunk. A key that a query does not see must not enter its sum at all, because 0 * v is
/// NaN for a v that was never written, and adding it turns -0 into +0. So the keys that all queries
/// see are done together, and the other keys for each query by itself, still in the order of the
/// keys.
template <int Rows, typename Element>
inline void chunk_values(const Keys* keys, const Element* const* tiles, int d, Scratch* scratch) {
  Keys common = keys[0];
  for (int r = 1; r < Rows; ++r) {
    if (keys[r].begin > common.begin) common.begin = keys[r].begin;
    if (keys[r].end < common.end) common.end = keys[r].end;
  }
  for (int r = 0; r < Rows; ++r) {
    for_lanes(d, [&](int64_t i, int) { store(scratch->chunk_out[r] + i, zero()); });
  }
  if (common.empty()) {
    for (int r = 0; r < Rows; ++r)
      weigh_keys<1>(tiles, d, keys[r], scratch->p + r, scratch->chunk_out + r);
    return;
  }
  for (int r = 0; r < Rows; ++r) {
    weigh_keys<1>(tiles, d, {keys[r].begin, common.begin}, scratch->p + r, scratch->chunk_out + r);
  }
  weigh_keys<Rows>(tiles, d, common, scratch->p, scratch->chunk_out);
  for (int r = 0; r < Rows; ++r) {
    weigh_keys<1>(tiles, d, {common.end, keys[r].end}, scratch->p + r, scratch->chunk_out + r);
  }
}

/// Adds a chunk to a query's softmax so far. The first chunk is taken as it is.
void fold(float chunk_max, float chunk_sum, const float* chunk_out, int d, Query* query,
          float* out) {
  if (!query->begun) {
    for_lanes(d, [&](int64_t i, int) { store(out + i, load(chunk_out + i)); });
    query->max = chunk_max;
    query->sum = chunk_sum;
    query->begun = true;
    return;
  }
  const float merged = query->max > chunk_max ? query->max : chunk_max;
  const Vec old_scale = exp(set1(query->max - merged)), new_scale = exp(set1(chunk_max - merged));
  for_lanes(d, [&](int64_t i, int) {
    store(out + i, fma(load(out + i), old_scale, mul(load(chunk_out + i), new_scale)));
  });
  float sums[kLanes];
  store(sums, fma(set1(query->sum), old_scale, mul(set1(chunk_sum), new_scale)));
  query->sum = sums[0];
  query->max = merged;
}

void write_out(const AttentionArgs& args, const Query& query, const float* sums) {
  const Vec total = set1(query.sum);
  as_elements(args.out, args.out_dtype, [&](auto* out) {
    for_lanes(args.cache.head_dim, [&](int64_t i, int lanes) {
      store(out + query.out + i, div(load(sums + i), total), lanes);
    });
  });
}

/// Processes all chunks for the Rows queries of a task.
template <int Rows, typename Element>
void attend(const AttentionArgs& args, int kv_head, const Element* data, Query* queries,
            Scratch* scratch) {
  const int d = args.cache.head_dim;
  int first = queries[0].first, end = queries[0].end;
  for (int r = 1; r < Rows; ++r) {
    if (queries[r].first < first) first = queries[r].first;
    if (queries[r].end > end) end = queries[r].end;
  }
  for (int chunk = first / kChunkTokens * kChunkTokens; chunk < end; chunk += kChunkTokens) {
    const int block_begin = first > chunk ? (first - chunk) / kBlockTokens : 0;
    const int block_end =
        end >= chunk + kChunkTokens ? kChunkBlocks : (end - chunk - 1) / kBlockTokens + 1;
    const Element* tiles[kChunkBlocks] = {};
    for (int b = block_begin; b < block_end; ++b) {
      tiles[b] = data + args.cache.tile_offset(args.sequence.block_table[chunk / kBlockTokens + b],
                                               kv_head);
    }
    chunk_scores<Rows>(queries, tiles, block_begin, block_end, d, args.scale, scratch->p);
    Keys keys[Rows];
    float max[Rows], sum[Rows];
    for (int r = 0; r < Rows; ++r) {
      keys[r] = keys_of(queries[r], chunk);
      softmax(keys[r], scratch->p[r], &max[r], &sum[r]);
    }
    chunk_values<Rows>(keys, tiles, d, scratch);
    for (int r = 0; r < Rows; ++r) {
      if (!keys[r].empty())
        fold(max[r], sum[r], scratch->chunk_out[r], d, &queries[r], scratch->out[r]);
    }
  }
  for (int r = 0; r < Rows; ++r) write_out(args, queries[r], scratch->out[r]);
}

template <typename Element>
inline void attend_some(int count, const AttentionArgs& args, int kv_head, const Element* data,
                        Query* queries, Scratch* scratch) {
  switch (count) {
    case 1:
      return attend<1>(args, kv_head, data, queries, scratch);
    case 2:
      return attend<2>(args, kv_head, data, queries, scratch);
#if defined(__AVX512F__)
    case 3:
      return attend<3>(args, kv_head, data, queries, scratch);
    case 4:
      return attend<4>(args, kv_head, data, queries, scratch);
#endif
  }
}

}  // namespace

void attention(const AttentionArgs& args, int row_begin, int row_end, int kv_head_begin,
               int kv_head_end) {
  const int d = args.cache.head_dim;
  Scratch scratch;
  // Scores of blocks that are not read keep these zeros and are masked. They are set because they
  // must not be uninitialised memory.
  for (int r = 0; r < kTaskRows; ++r)
    for_lanes(kChunkTokens, [&](int64_t i, int) { store(scratch.p[r] + i, zero()); });
  as_elements(static_cast<const void*>(args.cache.data), args.cache.dtype, [&](const auto* data) {
    for (int kv_head = kv_head_begin; kv_head < kv_head_end; ++kv_head) {
      Query queries[kTaskRows];
      int count = 0;
      for (int r = row_begin; r < row_end; ++r) {
        const int64_t row = args.sequence.row_begin + r;
        const int position = args.sequence.first_position + r;
        const int first =
            args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
        for (int head = args.head_begin[kv_head]; head < args.head_begin[kv_head + 1]; ++head) {
          queries[count++] = {args.q + row * args.q_stride + head * d,
                              row * args.out_stride + head * d,
                              first,
                              position + 1,
                              0,
                              0,
                              false};
          if (count == kTaskRows) {
            attend_some(count, args, kv_head, data, queries, &scratch);
            count = 0;
          }
        }
      }
      attend_some(count, args, kv_head, data, queries, &scratch);
    }
  });
}

}  // namespace shoal::SHOAL_ISA
