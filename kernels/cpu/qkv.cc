#include "kernels/cpu/norm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

namespace shoal::SHOAL_ISA {
namespace {

/// Normalises a head in place if there is a norm weight, then rotates it.
void norm_and_rotate(float* head, int d, const float* norm, float eps, const float* cos,
                     const float* sin) {
  if (norm != nullptr) {
    const Vec scale = set1(inverse_rms(head, d, eps));
    for_lanes(d, [&](int64_t i, int lanes) {
      store(head + i, mul(mul(load(head + i, lanes), scale), load(norm + i, lanes)), lanes);
    });
  }
  float* second = head + d / 2;
  for_lanes(d / 2, [&](int64_t i, int lanes) {
    const Vec a = load(head + i, lanes), b = load(second + i, lanes);
    const Vec c = load(cos + i, lanes), s = load(sin + i, lanes);
    store(head + i, fnma(b, s, mul(a, c)), lanes);
    store(second + i, fma(a, s, mul(b, c)), lanes);
  });
}

/// Writes one token's keys and values into a tile of the KV cache. A tile holds the keys as
/// [head_dim][kBlockTokens], so the token's keys are a column, and then the values as
/// [kBlockTokens][head_dim], so its values are a row.
template <typename Element>
void store_kv(const float* k, const float* v, int d, int slot, Element* tile) {
  for_lanes(d, [&](int64_t i, int lanes) {
    Element rounded[kLanes];
    store(rounded, load(k + i, lanes));
    for (int lane = 0; lane < lanes; ++lane) tile[(i + lane) * kBlockTokens + slot] = rounded[lane];
  });
  Element* row = tile + int64_t{d} * kBlockTokens + int64_t{slot} * d;
  for_lanes(d, [&](int64_t i, int lanes) { store(row + i, load(v + i, lanes), lanes); });
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
      for_lanes(columns, [&](int64_t i, int lanes) {
        store(x + i, add(load(x + i, lanes), load(args.bias + i, lanes)), lanes);
      });
    }
    const float *cos = args.cos + row * (d / 2), *sin = args.sin + row * (d / 2);
    for (int head = 0; head < args.heads; ++head)
      norm_and_rotate(x + head * d, d, args.q_norm, args.eps, cos, sin);
    const int32_t block = sequence.block_table[position / kBlockTokens];
    for (int head = 0; head < cache.kv_heads; ++head) {
      float* k = x + (args.heads + head) * d;
      norm_and_rotate(k, d, args.k_norm, args.eps, cos, sin);
      as_elements(cache.data, cache.dtype, [&](auto* data) {
        store_kv(k, k + cache.kv_heads * d, d, position % kBlockTokens,
                 data + cache.tile_offset(block, head));
      });
    }
  }
}

}  // namespace shoal::SHOAL_ISA
