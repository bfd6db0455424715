#pragma once
#include <cstdint>

#include "kernels/packed_matrix.h"
#include "runtime/base/dtype.h"
#include "runtime/base/kv_block.h"

// The shape of every op, in one place. Strides are in elements. Pointers are to row-major data
// unless a comment says otherwise. Ops depend on nothing but their arguments and the part of the
// work that they are given; threads take disjoint parts.

namespace shoal {

/// The type in which a product reads its inputs: bf16 weights read bf16, f16 and f32 weights read
/// f32.
constexpr Dtype activation_dtype(Dtype weights) {
  return weights == Dtype::kBf16 ? Dtype::kBf16 : Dtype::kF32;
}

/// Row strides of activations are multiples of this, and the padding is zero. So a pair or a vector
/// may be read past the end of an odd or short row.
inline constexpr int kActivationAlign = 32;
constexpr int64_t activation_stride(int64_t columns) {
  return (columns + kActivationAlign - 1) / kActivationAlign * kActivationAlign;
}

/// out[t, :] = float(table[ids[t], :]). Divided among threads by: tokens.
struct EmbedArgs {
  /// [vocab, hidden] of dtype, straight from the checkpoint. May be unaligned.
  const void* table = nullptr;
  Dtype dtype = Dtype::kF32;
  const int32_t* ids = nullptr;  ///< [tokens]
  int hidden = 0;
  float* out = nullptr;  ///< [tokens, hidden]
};

/// out = round(x * rsqrt(mean(x^2) + eps) * weight) per row. The squares are summed in one fixed
/// order. The padding of out's rows, up to out_stride, becomes zero. Divided among threads by:
/// rows.
struct RmsNormArgs {
  const float* x = nullptr;       ///< [rows, cols], rows cols apart
  const float* weight = nullptr;  ///< [cols]
  float eps = 0;
  int cols = 0;
  void* out = nullptr;  ///< [rows, cols] of out_dtype (f32 or bf16), rows out_stride apart
  Dtype out_dtype = Dtype::kF32;
  int64_t out_stride = 0;
};

/// y[c, m, n] = sum over contribution c's leaves of x[m, k] * W[n, k]. Each leaf is one fp32 chain
/// per output, in ascending k (two-byte weights: in ascending pairs of k, the odd one of each
/// first). Leaves fold on the stack as w->leaves() prescribes. The chain does not depend on the
/// number of rows, threads or parts. Divided among threads by: rows [row_begin, row_end) x panels
/// [panel_begin, panel_end).
struct MatmulArgs {
  const PackedMatrix* w = nullptr;
  const void* x = nullptr;  ///< [rows, k] of activation_dtype(w->dtype()), rows x_stride apart
  int64_t x_stride = 0;
  float* y = nullptr;  ///< [contributions, rows, n]; rows y_stride apart
  int64_t y_stride = 0;
  int64_t plane_stride = 0;  ///< from one contribution's plane to the next
};

/// residual[t, :] += sum[t, :] + bias. The bias is added to the sum first; nullptr means none.
/// Divided among threads by: rows.
struct ResidualAddArgs {
  float* residual = nullptr;    ///< [rows, cols]
  const float* sum = nullptr;   ///< [rows, cols]
  const float* bias = nullptr;  ///< [cols] or nullptr
  int cols = 0;
};

/// Tokens of one attention chunk. It is a whole number of blocks (runtime/base/kv_block.h), and
/// chunks begin at absolute multiples of its length.
inline constexpr int kChunkTokens = 64;

/// The largest head dimension that attention takes, because it keeps its sums and q on the stack.
inline constexpr int kMaxHeadDim = 1024;

/// One layer of a rank's paged KV cache: [block][kv_head] tiles. A tile is K as
/// [head_dim][kBlockTokens], then V as [kBlockTokens][head_dim], both of dtype.
struct KvLayer {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  int kv_heads = 0;  ///< on this rank
  int head_dim = 0;  ///< even, at most kMaxHeadDim
  int64_t tile_elements() const { return int64_t{2} * head_dim * kBlockTokens; }
  int64_t tile_offset(int64_t block, int kv_head) const {
    return (block * kv_heads + kv_head) * tile_elements();
  }
};

/// The rows of one sequence in a step: rows [row_begin, row_begin + rows) of the step hold the
/// tokens at positions first_position, first_position + 1, ...
struct SequenceRows {
  const int32_t* block_table = nullptr;  ///< entry i: block of positions [16 i, 16 i + 16)
  int first_position = 0;
  int row_begin = 0;
  int rows = 0;
};

/// Applies the bias, the q/k norm and the rotary embedding to the fused q|k|v product. Then q stays
/// in place, and k and v go into the cache, rounded to its type. The rotation pairs element i with
/// i + head_dim/2. Divided among threads by: rows of the step (the caller maps rows to sequences).
struct QkvArgs {
  /// [rows, (heads + 2 kv_heads) * head_dim], rows qkv_stride apart. The rotated q is left here.
  float* qkv = nullptr;
  int64_t qkv_stride = 0;
  int heads = 0;
  const float* bias = nullptr;    ///< [(heads + 2 kv_heads) * head_dim] or nullptr
  const float* q_norm = nullptr;  ///< [head_dim] or nullptr
  const float* k_norm = nullptr;
  float eps = 0;
  const float* cos = nullptr;  ///< [rows, head_dim / 2], with the attention factor multiplied in
  const float* sin = nullptr;
  KvLayer cache;
};

/// Causal attention of the rows of one sequence over its blocks. K and V are only read from the
/// cache. For each row and head, every chunk of keys gets its own max, its own sum and its own P.V,
/// which starts from zero; then the chunks fold from left to right. Chunks that a row does not see
/// are skipped for it, and masked lanes add nothing. The arithmetic is fp32. Divided among threads
/// by: rows of the sequence x kv heads.
struct AttentionArgs {
  /// [rows, heads, head_dim] of the step, rows q_stride apart (QkvArgs::qkv).
  const float* q = nullptr;
  int64_t q_stride = 0;
  int heads = 0;
  /// [kv_heads + 1]: local q heads [head_begin[g], head_begin[g + 1]) read kv head g.
  const int32_t* head_begin = nullptr;
  KvLayer cache;
  SequenceRows sequence;
  /// A row at position p sees the keys in (p - window, p]; with 0, all keys up to p.
  int window = 0;
  float scale = 0;
  /// [rows, heads * head_dim] of out_dtype (f32 or bf16), rows out_stride apart.
  void* out = nullptr;
  Dtype out_dtype = Dtype::kF32;
  int64_t out_stride = 0;
};

/// out = round(silu(gate + gate_bias) * (up + up_bias)). The padding of out's rows becomes zero.
/// Divided among threads by: rows.
struct SiluMulArgs {
  const float* gate_up = nullptr;  ///< [rows, 2 * cols]: gate, then up; rows 2 * cols apart
  const float* bias = nullptr;     ///< [2 * cols] or nullptr
  int cols = 0;
  void* out = nullptr;  ///< [rows, cols] of out_dtype, rows out_stride apart
  Dtype out_dtype = Dtype::kF32;
  int64_t out_stride = 0;
};

/// The greatest of logits [cols] and its column (the lowest one if several are equal). NaN is never
/// the greatest. The result is {-infinity, 0} if nothing is greater than -infinity.
struct ArgmaxResult {
  float value = 0;
  int32_t column = 0;
};

/// For each chunk of kVocabChunk columns: the maximum and the sum of exp(x - maximum), from which
/// log-sum-exp is computed in one fixed order. A chunk that holds only -infinity has the sum 0.
inline constexpr int kVocabChunk = 256;
struct ChunkSum {
  float max = 0;
  float sum = 0;
};

}  // namespace shoal
