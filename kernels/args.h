#pragma once
#include <cstdint>

#include "kernels/packed_matrix.h"
#include "runtime/base/dtype.h"

// The shape of every op, once. Strides are in elements. Pointers are to row-major data unless said
// otherwise. Ops are pure functions of their arguments and the part of the work they are given;
// threads take disjoint parts.

namespace shoal {

/// The type in which a product reads its inputs: bf16 weights read bf16, f16 and f32 weights read
/// f32.
constexpr Dtype activation_dtype(Dtype weights) {
  return weights == Dtype::kBf16 ? Dtype::kBf16 : Dtype::kF32;
}

/// Row strides of activations are multiples of this and the padding is zero, so that a pair or a
/// vector may be read past an odd or short row.
inline constexpr int kActivationAlign = 32;
constexpr int64_t activation_stride(int64_t columns) {
  return (columns + kActivationAlign - 1) / kActivationAlign * kActivationAlign;
}

/// out[t, :] = float(table[ids[t], :]). Part: tokens.
struct EmbedArgs {
  const void* table =
      nullptr;  ///< [vocab, hidden] of dtype, straight from the checkpoint (may be unaligned)
  Dtype dtype = Dtype::kF32;
  const int32_t* ids = nullptr;  ///< [tokens]
  int hidden = 0;
  float* out = nullptr;  ///< [tokens, hidden]
};

/// out = round(x * rsqrt(mean(x^2) + eps) * weight) per row; the sum of squares in one fixed lane
/// order. The padding of out's rows, up to out_stride, becomes zero. Part: rows.
struct RmsNormArgs {
  const float* x = nullptr;       ///< [rows, cols], cols apart
  const float* weight = nullptr;  ///< [cols]
  float eps = 0;
  int cols = 0;
  void* out = nullptr;  ///< [rows, cols] of out_dtype (f32 or bf16), out_stride apart
  Dtype out_dtype = Dtype::kF32;
  int64_t out_stride = 0;
};

/// y[c, m, n] = sum over contribution c's leaves of x[m, k] * W[n, k]. Each leaf is one fp32 chain
/// per output, k ascending (bf16 dot-product sets: pairs of k ascending); leaves fold on the stack
/// as w->leaves() says. The chain does not depend on rows, threads or parts. Part: rows [row_begin,
/// row_end) x panels [panel_begin, panel_end).
struct MatmulArgs {
  const PackedMatrix* w = nullptr;
  const void* x = nullptr;  ///< [rows, k] of activation_dtype(w->dtype()), x_stride apart
  int64_t x_stride = 0;
  float* y = nullptr;  ///< [contributions, rows, n]; rows y_stride apart
  int64_t y_stride = 0;
  int64_t plane_stride = 0;  ///< between contributions
};

/// residual[t, :] += sum[t, :] + bias (bias added to the sum first; nullptr: none). Part: rows.
struct ResidualAddArgs {
  float* residual = nullptr;    ///< [rows, cols]
  const float* sum = nullptr;   ///< [rows, cols]
  const float* bias = nullptr;  ///< [cols] or nullptr
  int cols = 0;
};

/// Tokens of one KV block, and of one attention chunk (a whole number of blocks, at absolute
/// multiples of its length).
inline constexpr int kBlockTokens = 16;
inline constexpr int kChunkTokens = 64;

/// The largest head dimension that attention takes: its sums lie on the stack.
inline constexpr int kMaxHeadDim = 1024;

/// One layer of a rank's paged KV cache: [block][kv_head] tiles; a tile is K as
/// [head_dim][kBlockTokens], then V as [kBlockTokens][head_dim], both of dtype.
struct KvLayer {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  int kv_heads = 0;  ///< of this rank
  int head_dim = 0;  ///< even, at most kMaxHeadDim
  int64_t tile_elements() const { return int64_t{2} * head_dim * kBlockTokens; }
  int64_t tile_offset(int64_t block, int kv_head) const {
    return (block * kv_heads + kv_head) * tile_elements();
  }
};

/// The rows of one sequence in a step: tokens at positions first_position ... in rows row_begin ...
/// of the step.
struct SequenceRows {
  const int32_t* block_table = nullptr;  ///< block of positions [16 i, 16 i + 16)
  int first_position = 0;
  int row_begin = 0;
  int rows = 0;
};

/// Bias, q/k norm and rotary embedding of the fused q|k|v product, then q in place and k, v into
/// the cache, rounded to its type. Rotation pairs element i with i + head_dim/2. Part: rows of the
/// step (row -> sequence by the caller).
struct QkvArgs {
  float* qkv = nullptr;  ///< [rows, (heads + 2 kv_heads) * head_dim], qkv_stride apart; q is left
                         ///< here, rotated
  int64_t qkv_stride = 0;
  int heads = 0;
  const float* bias = nullptr;    ///< [(heads + 2 kv_heads) * head_dim] or nullptr
  const float* q_norm = nullptr;  ///< [head_dim] or nullptr
  const float* k_norm = nullptr;
  float eps = 0;
  const float* cos = nullptr;  ///< [rows, head_dim / 2], attention factor included
  const float* sin = nullptr;
  KvLayer cache;
};

/// Causal attention of the rows of one sequence over its blocks: K and V are read from the cache
/// only. Per row and head the keys of a chunk give own max, own sum and P.V from zero; chunks fold
/// left to right; chunks that a row does not see are skipped for it, masked lanes add nothing.
/// Arithmetic is fp32. Part: rows of the sequence x kv heads.
struct AttentionArgs {
  const float* q = nullptr;  ///< [rows, heads, head_dim] of the step, q_stride apart (QkvArgs::qkv)
  int64_t q_stride = 0;
  int heads = 0;
  /// [kv_heads + 1]: local q heads [head_begin[g], head_begin[g + 1]) read kv head g.
  const int32_t* head_begin = nullptr;
  KvLayer cache;
  SequenceRows sequence;
  int window = 0;  ///< a row at position p sees keys in (p - window, p]; 0: all up to p
  float scale = 0;
  void* out = nullptr;  ///< [rows, heads * head_dim] of out_dtype (f32 or bf16), out_stride apart
  Dtype out_dtype = Dtype::kF32;
  int64_t out_stride = 0;
};

/// out = round(silu(gate + gate_bias) * (up + up_bias)); the padding of out's rows becomes zero.
/// Part: rows.
struct SiluMulArgs {
  const float* gate_up = nullptr;  ///< [rows, 2 * cols]: gate, then up; 2 * cols apart
  const float* bias = nullptr;     ///< [2 * cols] or nullptr
  int cols = 0;
  void* out = nullptr;  ///< [rows, cols] of out_dtype, out_stride apart
  Dtype out_dtype = Dtype::kF32;
  int64_t out_stride = 0;
};

/// Of logits [cols]: the greatest and its column (the lowest of equals). NaN is never the greatest;
/// {-infinity, 0} where nothing is greater than -infinity.
struct ArgmaxResult {
  float value = 0;
  int32_t column = 0;
};

/// Per chunk of kVocabChunk columns: the maximum and the sum of exp(x - maximum), for log-sum-exp
/// in one fixed order. A chunk of -infinity alone has the sum 0.
inline constexpr int kVocabChunk = 256;
struct ChunkSum {
  float max = 0;
  float sum = 0;
};

}  // namespace shoal
