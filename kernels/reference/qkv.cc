#include <cmath>

#include "kernels/reference/lane_sums.h"
#include "kernels/reference/load.h"
#include "kernels/reference/ops.h"

namespace shoal::reference {
namespace {

/// Normalises a head in place if there is a norm weight, then rotates it.
void norm_and_rotate(float* head, int d, const float* norm, float eps, const float* cos,
                     const float* sin) {
  if (norm != nullptr) {
    const float scale = inverse_rms(head, d, eps);
    for (int i = 0; i < d; ++i) head[i] = head[i] * scale * norm[i];
  }
  const int half = d / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = std::fma(-b, sin[i], a * cos[i]);
    head[half + i] = std::fma(a, sin[i], b * cos[i]);
  }
}

}  // namespace

void qkv(const QkvArgs& args, const SequenceRows& sequence, int row_begin, int row_end) {
  const KvLayer& cache = args.cache;
  const int d = cache.head_dim, columns = (args.heads + 2 * cache.kv_heads) * d;
  for (int r = row_begin; r < row_end; ++r) {
    const int64_t row = sequence.row_begin + r;
    const int position = sequence.first_position + r;
    float* x = args.qkv + row * args.qkv_stride;
    if (args.bias != nullptr) {
      for (int i = 0; i < columns; ++i) x[i] += args.bias[i];
    }
    const float *cos = args.cos + row * (d / 2), *sin = args.sin + row * (d / 2);
    for (int head = 0; head < args.heads; ++head)
      norm_and_rotate(x + head * d, d, args.q_norm, args.eps, cos, sin);
    for (int head = 0; head < cache.kv_heads; ++head) {
      float* k = x + (args.heads + head) * d;
      const float* v = k + cache.kv_heads * d;
      norm_and_rotate(k, d, args.k_norm, args.eps, cos, sin);
      const int64_t tile = cache.tile_offset(sequence.block_table[position / kBlockTokens], head);
      for (int i = 0; i < d; ++i) {
        store(k[i], cache.data, cache.dtype, k_index(tile, i, position % kBlockTokens));
        store(v[i], cache.data, cache.dtype, v_index(cache, tile, i, position % kBlockTokens));
      }
    }
  }
}

}  // namespace shoal::reference
