#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/exp.h"
#include "kernels/reference/lane_sums.h"
#include "kernels/reference/load.h"
#include "kernels/reference/ops.h"

namespace shoal::reference {
namespace {

/// The softmax of one row and head over some keys, and their P.V.
struct Softmax {
  float max = 0;
  float sum = 0;
  std::vector<float> out;
};

/// That of keys [begin, end) of one chunk.
Softmax chunk_softmax(const AttentionArgs& args, const float* q, int kv_head, int begin, int end) {
  const KvLayer& cache = args.cache;
  const int d = cache.head_dim;
  float p[kChunkTokens] = {};  // each key in its place in the chunk
  const auto tile_of = [&](int key) {
    return cache.tile_offset(args.sequence.block_table[key / kBlockTokens], kv_head);
  };
  float max = -std::numeric_limits<float>::infinity();
  for (int key = begin; key < end; ++key) {
    float dot = 0;
    for (int i = 0; i < d; ++i) {
      dot = std::fma(
          q[i], load(cache.data, cache.dtype, k_index(tile_of(key), i, key % kBlockTokens)), dot);
    }
    p[key % kChunkTokens] = dot * args.scale;
    max = std::max(max, p[key % kChunkTokens]);
  }
  for (int key = begin; key < end; ++key) p[key % kChunkTokens] = exp(p[key % kChunkTokens] - max);
  Softmax chunk{.max = max, .out = std::vector<float>(static_cast<size_t>(d))};
  for (int i = 0; i < d; ++i) {
    float& out = chunk.out[static_cast<size_t>(i)];
    for (int key = begin; key < end; ++key) {
      out = std::fma(
          p[key % kChunkTokens],
          load(cache.data, cache.dtype, v_index(cache, tile_of(key), i, key % kBlockTokens)), out);
    }
  }
  static_assert(kChunkTokens == 4 * kLanes);
  chunk.sum = sum_of_four_vectors(p);
  return chunk;
}

/// Adds the softmax of the next chunk.
void fold(const Softmax& chunk, Softmax* all) {
  const float merged = std::max(all->max, chunk.max);
  const float old_scale = exp(all->max - merged), new_scale = exp(chunk.max - merged);
  for (size_t i = 0; i < all->out.size(); ++i)
    all->out[i] = std::fma(all->out[i], old_scale, chunk.out[i] * new_scale);
  all->sum = std::fma(all->sum, old_scale, chunk.sum * new_scale);
  all->max = merged;
}

/// The softmax over keys [first, last], chunk by chunk. The first chunk is taken as it is.
Softmax softmax(const AttentionArgs& args, const float* q, int kv_head, int first, int last) {
  Softmax all;
  for (int chunk = first / kChunkTokens * kChunkTokens; chunk <= last; chunk += kChunkTokens) {
    Softmax next = chunk_softmax(args, q, kv_head, std::max(chunk, first),
                                 std::min(chunk + kChunkTokens, last + 1));
    if (chunk <= first) {
      all = std::move(next);
    } else {
      fold(next, &all);
    }
  }
  return all;
}

}  // namespace

void attention(const AttentionArgs& args, int row_begin, int row_end, int kv_head_begin,
               int kv_head_end) {
  const int d = args.cache.head_dim;
  for (int r = row_begin; r < row_end; ++r) {
    const int64_t row = args.sequence.row_begin + r;
    const int last = args.sequence.first_position + r;
    const int first = args.window > 0 ? std::max(0, last - args.window + 1) : 0;
    for (int kv_head = kv_head_begin; kv_head < kv_head_end; ++kv_head) {
      for (int head = args.head_begin[kv_head]; head < args.head_begin[kv_head + 1]; ++head) {
        const Softmax found =
            softmax(args, args.q + row * args.q_stride + head * d, kv_head, first, last);
        for (int i = 0; i < d; ++i) {
          store(found.out[static_cast<size_t>(i)] / found.sum, args.out, args.out_dtype,
                row * args.out_stride + head * d + i);
        }
      }
    }
  }
}

}  // namespace shoal::reference
