#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

// A task is up to kTaskRows (row, head) pairs that read the same kv head. It goes through the keys
// once for all of them, chunk by chunk, so that the cache is read from memory once. Up to kTileRows
// pairs at a time share what they load of a chunk. The result of a pair does not depend on the
// other pairs in its task, because every sum is its own chain over its own keys.

namespace shoal::SHOAL_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kTaskRows = 8, kTileRows = 8;
/// Vectors of sums of each row when this many rows are summed at once: at most 16 in all, of 32
/// registers.
constexpr int vecs_at_once(int rows) {
  return rows <= 4 ? 4 : 2;
}
#else
constexpr int kTaskRows = 12, kTileRows = 6;
/// The same, but at most 6, as a vector is two of AVX2's 16 registers and four of NEON's 32.
constexpr int vecs_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}
#endif
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;
static_assert(kBlockTokens == kLanes, "a block's keys are one vector");

/// From one row of sums to the next, in floats. It is no multiple of a page, because rows that are
/// whole pages apart would share few places of the first-level cache.
constexpr int kSumsStride = kMaxHeadDim + kLanes;

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
  bool whole() const { return begin == 0 && end == kChunkTokens; }
};
inline Keys keys_of(const Query& query, int chunk) {
  const int begin = query.first - chunk, end = query.end - chunk;
  return {begin < 0 ? 0 : begin, end > kChunkTokens ? kChunkTokens : end};
}

struct Scratch {
  alignas(64) float q[kTaskRows * kMaxHeadDim];         // of each tile [head_dim][its rows]
  alignas(64) float p[kTileRows][kChunkTokens];         // scores, then probabilities
  alignas(64) float chunk_out[kTileRows][kSumsStride];  // P.V of the chunk
  alignas(64) float out[kTaskRows][kSumsStride];        // P.V of all chunks so far
};

/// The blocks of a chunk that some query of a task sees, and their tiles. The others are not read
/// and need not exist.
template <typename Element>
struct Chunk {
  int begin = 0, end = 0;
  const Element* tiles[kChunkBlocks] = {};
  const Element* next[kChunkBlocks] = {};  // of the next chunk; after the last one, the same tiles
};

/// Prefetches Count elements. The processor's own prefetching ends where a tile does. So q.k
/// prefetches V of its chunk, and p.v K of the next one, in step with what they read. All at once
/// would be more lines than a processor can wait for.
template <int Count, typename Element>
inline void prefetch(const Element* from) {
  constexpr int kLine = 64 / sizeof(Element);
#pragma GCC unroll 4
  for (int i = 0; i < Count; i += kLine) __builtin_prefetch(from + i, /*rw=*/0, /*locality=*/3);
}

/// p[row][key] = scale * q[row] . k[key] for Blocks blocks of keys from `block` on. Keys are in
/// lanes, and head_dim is summed one element after the other. q: [head_dim][Rows].
template <int Rows, int Blocks, typename Element>
inline void scores(const float* q, const Chunk<Element>& chunk, int block, int d, float scale,
                   float (*p)[kChunkTokens]) {
  Vec sums[Rows][Blocks];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) sums[r][b] = zero();
  }
  const Element* tiles[Blocks];
#pragma GCC unroll 4
  for (int b = 0; b < Blocks; ++b) tiles[b] = chunk.tiles[block + b];
  for (int64_t i = 0; i < d; ++i) {
    Vec k[Blocks];
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b) {
      k[b] = load(tiles[b] + i * kBlockTokens);
      prefetch<kBlockTokens>(tiles[b] + (d + i) * kBlockTokens);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec element = set1(q[i * Rows + r]);
#pragma GCC unroll 4
      for (int b = 0; b < Blocks; ++b) sums[r][b] = fma(element, k[b], sums[r][b]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < Blocks; ++b)
      store(p[r] + (block + b) * kBlockTokens, mul(sums[r][b], set1(scale)));
  }
}

/// Computes the scores of a chunk.
template <int Rows, typename Element>
inline void chunk_scores(const float* q, const Chunk<Element>& chunk, int d, float scale,
                         float (*p)[kChunkTokens]) {
  constexpr int kBlocks = vecs_at_once(Rows);
  int b = chunk.begin;
  for (; b + kBlocks <= chunk.end; b += kBlocks) scores<Rows, kBlocks>(q, chunk, b, d, scale, p);
  if constexpr (kBlocks > 1)
    for (; b < chunk.end; ++b) scores<Rows, 1>(q, chunk, b, d, scale, p);
}

/// Turns one query's scores of a chunk into exp(score - max), or into exactly 0 if the query does
/// not see the key. Previous values of masked lanes have no effect, even NaN from memory that was
/// never written. Returns the maximum and the sum. All: the query sees the whole chunk.
template <bool All>
inline void softmax(Keys keys, float* p, float* max_out, float* sum_out) {
  const auto seen = [&](int b, Vec x, Vec otherwise) {
    if constexpr (All) return x;
    return select(lanes_between(keys.begin - b * kLanes, keys.end - b * kLanes), x, otherwise);
  };
  Vec best = set1(-__builtin_inff());
  for (int b = 0; b < kChunkBlocks; ++b)
    best = max(best, seen(b, load(p + b * kLanes), set1(-__builtin_inff())));
  const float greatest = max_of(best);
  Vec parts[kChunkBlocks];
#pragma GCC unroll 4
  for (int b = 0; b < kChunkBlocks; ++b) {
    parts[b] = seen(b, exp(sub(load(p + b * kLanes), set1(greatest))), zero());
    store(p + b * kLanes, parts[b]);
  }
  static_assert(kChunkBlocks == 4);
  *max_out = greatest;
  *sum_out = sum_of(add(add(parts[0], parts[1]), add(parts[2], parts[3])));
}

/// out[row][i ...] += p[row][key] * v[key][i ...] for the keys in order. Vecs vectors of head_dim
/// are in lanes.
template <int Rows, int Vecs, typename Element>
inline void weigh(const Chunk<Element>& chunk, int d, Keys keys, int64_t i, int lanes,
                  const float (*p)[kChunkTokens], float (*out)[kSumsStride]) {
  Vec sums[Rows][Vecs];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; ++j) sums[r][j] = load(out[r] + i + j * kLanes);
  }
  for (int key = keys.begin; key < keys.end; ++key) {
    const int64_t row = int64_t{d} * (key % kBlockTokens) + i;
    const Element* v = chunk.tiles[key / kBlockTokens] + int64_t{d} * kBlockTokens + row;
    prefetch<Vecs * kLanes>(chunk.next[key / kBlockTokens] + row);
    Vec values[Vecs];
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; ++j) values[j] = load(v + j * kLanes, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec weight = set1(p[r][key]);
#pragma GCC unroll 4
      for (int j = 0; j < Vecs; ++j) sums[r][j] = fma(weight, values[j], sums[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < Vecs; ++j) store(out[r] + i + j * kLanes, sums[r][j]);
  }
}

/// Weighs the keys for all of head_dim.
template <int Rows, typename Element>
void weigh_keys(const Chunk<Element>& chunk, int d, Keys keys, const float (*p)[kChunkTokens],
                float (*out)[kSumsStride]) {
  if (keys.empty()) return;
  constexpr int kVecs = vecs_at_once(Rows);
  int i = 0;
  for (; i + kVecs * kLanes <= d; i += kVecs * kLanes)
    weigh<Rows, kVecs>(chunk, d, keys, i, kLanes, p, out);
  for (; i + kLanes <= d; i += kLanes) weigh<Rows, 1>(chunk, d, keys, i, kLanes, p, out);
  if (i < d) weigh<Rows, 1>(chunk, d, keys, i, d - i, p, out);
}

/// P.V of a chunk. A key that a query does not see must not enter its sum at all, because 0 * v is
/// NaN for a v that was never written, and adding it turns -0 into +0. So the keys that all queries
/// see are done together, and the other keys for each query by itself, still in the order of the
/// keys.
template <int Rows, typename Element>
inline void chunk_values(const Keys* keys, const Chunk<Element>& chunk, int d, Scratch* scratch) {
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
      weigh_keys<1>(chunk, d, keys[r], scratch->p + r, scratch->chunk_out + r);
    return;
  }
  for (int r = 0; r < Rows; ++r) {
    weigh_keys<1>(chunk, d, {keys[r].begin, common.begin}, scratch->p + r, scratch->chunk_out + r);
  }
  weigh_keys<Rows>(chunk, d, common, scratch->p, scratch->chunk_out);
  for (int r = 0; r < Rows; ++r) {
    weigh_keys<1>(chunk, d, {common.end, keys[r].end}, scratch->p + r, scratch->chunk_out + r);
  }
}

/// The softmax of a chunk, of a query in each lane.
struct ChunkSoftmax {
  alignas(64) float max[kLanes];
  alignas(64) float sum[kLanes];
};

/// Adds a chunk to the softmax so far of each query of a tile, whose P.V is `out`. The first chunk
/// that a query sees is taken as it is.
template <int Rows>
void fold(const Keys* keys, const ChunkSoftmax& chunk, const float (*chunk_out)[kSumsStride], int d,
          Query* queries, float (*out)[kSumsStride]) {
  float max_so_far[kLanes] = {}, sum_so_far[kLanes] = {};
  for (int r = 0; r < Rows; ++r) {
    max_so_far[r] = queries[r].max;
    sum_so_far[r] = queries[r].sum;
  }
  const Vec merged = max(load(max_so_far), load(chunk.max));
  const Vec old_scale = exp(sub(load(max_so_far), merged));
  const Vec new_scale = exp(sub(load(chunk.max), merged));
  float maxima[kLanes], sums[kLanes], old_scales[kLanes], new_scales[kLanes];
  store(maxima, merged);
  store(sums, fma(load(sum_so_far), old_scale, mul(load(chunk.sum), new_scale)));
  store(old_scales, old_scale);
  store(new_scales, new_scale);
  for (int r = 0; r < Rows; ++r) {
    if (keys[r].empty()) continue;
    const bool first = !queries[r].begun;
    queries[r].begun = true;
    queries[r].max = first ? chunk.max[r] : maxima[r];
    queries[r].sum = first ? chunk.sum[r] : sums[r];
    for_lanes(d, [&](int64_t i, int) {
      const Vec added = load(chunk_out[r] + i);
      store(out[r] + i,
            first ? added
                  : fma(load(out[r] + i), set1(old_scales[r]), mul(added, set1(new_scales[r]))));
    });
  }
}

void write_out(const AttentionArgs& args, const Query& query, const float* sums) {
  const Vec total = set1(query.sum);
  as_elements(args.out, args.out_dtype, [&](auto* out) {
    for_lanes(args.cache.head_dim, [&](int64_t i, int lanes) {
      store(out + query.out + i, div(load(sums + i), total), lanes);
    });
  });
}

/// Takes a chunk into the softmax of Rows queries, whose sums are `out`.
template <int Rows, typename Element>
void attend_tile(const AttentionArgs& args, const Chunk<Element>& chunk, int chunk_begin,
                 const float* q, Query* queries, float (*out)[kSumsStride], Scratch* scratch) {
  const int d = args.cache.head_dim;
  chunk_scores<Rows>(q, chunk, d, args.scale, scratch->p);
  Keys keys[Rows];
  ChunkSoftmax of_chunk = {};
  for (int r = 0; r < Rows; ++r) {
    keys[r] = keys_of(queries[r], chunk_begin);
    const auto of_row = keys[r].whole() ? softmax<true> : softmax<false>;
    of_row(keys[r], scratch->p[r], &of_chunk.max[r], &of_chunk.sum[r]);
  }
  chunk_values<Rows>(keys, chunk, d, scratch);
  fold<Rows>(keys, of_chunk, scratch->chunk_out, d, queries, out);
}

/// The same for this many queries, of 1..kTileRows.
template <typename... Args>
inline void attend_rows(int rows, const Args&... args) {
  switch (rows) {
    case 1:
      return attend_tile<1>(args...);
    case 2:
      return attend_tile<2>(args...);
    case 3:
      return attend_tile<3>(args...);
    case 4:
      return attend_tile<4>(args...);
    case 5:
      return attend_tile<5>(args...);
    case 6:
      return attend_tile<6>(args...);
#if defined(__AVX512F__)
    case 7:
      return attend_tile<7>(args...);
    case 8:
      return attend_tile<8>(args...);
#endif
  }
}

/// How many of the pairs that are left the next tile takes. The tiles of a task have about as many.
inline int tile_rows(int left) {
  const int tiles = (left + kTileRows - 1) / kTileRows;
  return (left + tiles - 1) / tiles;
}

/// Copies q of each tile of a task, so that what is multiplied at once lies side by side.
void pack_queries(const Query* queries, int count, int d, float* packed) {
  for (int begin = 0, rows = 0; begin < count; begin += rows) {
    rows = tile_rows(count - begin);
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < d; ++i) packed[begin * d + i * rows + r] = queries[begin + r].q[i];
    }
  }
}

/// Processes all chunks for the queries of a task.
template <typename Element>
void attend(const AttentionArgs& args, int kv_head, const Element* data, Query* queries, int count,
            Scratch* scratch) {
  const int d = args.cache.head_dim;
  pack_queries(queries, count, d, scratch->q);
  int first = queries[0].first, end = queries[0].end;
  for (int r = 1; r < count; ++r) {
    if (queries[r].first < first) first = queries[r].first;
    if (queries[r].end > end) end = queries[r].end;
  }
  const int first_block = first / kBlockTokens, end_block = (end - 1) / kBlockTokens + 1;
  const auto tile = [&](int block) {
    return data + args.cache.tile_offset(args.sequence.block_table[block], kv_head);
  };
  for (int block = first / kChunkTokens * kChunkBlocks; block < end_block; block += kChunkBlocks) {
    Chunk<Element> chunk{
        .begin = first_block > block ? first_block - block : 0,
        .end = end_block - block < kChunkBlocks ? end_block - block : kChunkBlocks};
    for (int b = chunk.begin; b < chunk.end; ++b) {
      const int next = block + b + kChunkBlocks;
      chunk.tiles[b] = tile(block + b);
      chunk.next[b] = next < end_block ? tile(next) : chunk.tiles[b];
    }
    for (int row = 0, rows = 0; row < count; row += rows) {
      rows = tile_rows(count - row);
      attend_rows(rows, args, chunk, block * kBlockTokens, scratch->q + row * d, queries + row,
                  scratch->out + row, scratch);
    }
  }
  for (int r = 0; r < count; ++r) write_out(args, queries[r], scratch->out[r]);
}

}  // namespace

void attention(const AttentionArgs& args, int row_begin, int row_end, int kv_head_begin,
               int kv_head_end) {
  const int d = args.cache.head_dim;
  Scratch scratch;
  // Scores of blocks that are not read are masked, whatever is there. They are set once, because
  // they must not be uninitialised memory.
  for (int r = 0; r < kTileRows; ++r)
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
            attend(args, kv_head, data, queries, count, &scratch);
            count = 0;
          }
        }
      }
      if (count > 0) attend(args, kv_head, data, queries, count, &scratch);
    }
  });
}

}  // namespace shoal::SHOAL_ISA
