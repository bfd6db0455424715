#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/load.h"
#include "kernels/reference/ops.h"

namespace shoal::reference {
namespace {

/// Running softmax of one row and head.
struct Fold {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  std::vector<float> out;
};

/// Computes the max, sum and P.V of keys [begin, end) of one chunk, and folds them into *fold.
void fold_chunk(const AttentionArgs& args, const float* q, int kv_head, int begin, int end,
                Fold* fold) {
  const KvLayer& cache = args.cache;
  const int d = cache.head_dim;
  float scores[kChunkTokens];
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
    scores[key - begin] = dot * args.scale;
    max = std::max(max, scores[key - begin]);
  }
  float sum = 0;
  for (int key = begin; key < end; ++key) {
    scores[key - begin] = std::exp(scores[key - begin] - max);
    sum += scores[key - begin];
  }
  const float merged = std::max(fold->max, max);
  const float old_scale = std::exp(fold->max - merged), new_scale = std::exp(max - merged);
  for (int i = 0; i < d; ++i) {
    float out = 0;
    for (int key = begin; key < end; ++key) {
      out = std::fma(
          scores[key - begin],
          load(cache.data, cache.dtype, v_index(cache, tile_of(key), i, key % kBlockTokens)), out);
    }
    fold->out[static_cast<size_t>(i)] =
        std::fma(fold->out[static_cast<size_t>(i)], old_scale, out * new_scale);
  }
  fold->sum = std::fma(fold->sum, old_scale, sum * new_scale);
  fold->max = merged;
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
        Fold fold;
        fold.out.assign(static_cast<size_t>(d), 0.0f);
        for (int chunk = first / kChunkTokens * kChunkTokens; chunk <= last;
             chunk += kChunkTokens) {
          fold_chunk(args, args.q + row * args.q_stride + head * d, kv_head, std::max(chunk, first),
                     std::min(chunk + kChunkTokens, last + 1), &fold);
        }
        for (int i = 0; i < d; ++i) {
          store(fold.out[static_cast<size_t>(i)] / fold.sum, args.out, args.out_dtype,
                row * args.out_stride + head * d + i);
        }
      }
    }
  }
}

}  // namespace shoal::reference
