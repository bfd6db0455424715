#pragma once
#include <cstdint>

// The arguments of the model's kernels in libshoal_cuda.so: the twin of kernels/args.h, in plain C
// like cuda_module.h. A struct is handed over by value and a recorded launch keeps it, so whatever
// changes from step to step is in device memory or in the shape of the launch. Strides are in
// elements, and pointers are device memory unless their comment says otherwise. A void pointer's
// elements have the type that its comment says.

extern "C" {

/// The types of weights, and of the KV cache beside them. Activations of bf16 weights are bf16, and
/// those of the others are float32 (activation_dtype in kernels/args.h).
enum ShoalType { kShoalBf16 = 0, kShoalF16, kShoalF32, kShoalTypes };

/// The most leaves of one product on one device. A balanced tree over them needs a stack of four.
enum { kShoalMostLeaves = 8 };
/// The most rows (tokens of a step) of a product whose leaves may stay unfolded (ShoalProduct::y
/// null). Up to this number each leaf is computed by thread blocks of its own, so its sum is in
/// memory anyway, and add_norm can add them up, which saves a kernel. With more rows, one thread
/// block may compute all leaves of an output, and only their fold is ever there.
enum { kShoalMostUnfoldedRows = 32 };

/// The most rows for which each leaf may get thread blocks of its own. They write its sum to
/// scratch.
enum { kShoalMostSplitRows = 256 };
/// Otherwise a thread block computes all leaves of a tile. kShoalLargeTile is the most outputs of a
/// tile, and the most tokens. Sums that wait to be folded are in scratch. There are at most
/// kShoalMostKeptSums of them, because the topmost sum of the stack stays in registers.
enum { kShoalLargeTile = 128, kShoalMostKeptSums = 3 };

/// One leaf of a product's columns, and what follows it on the stack of sums (LeafStep in
/// kernels/packed_matrix.h).
struct ShoalLeaf {
  int32_t begin, end;  ///< columns [begin, end) of x; any, but at least one
  int64_t weights_at;  ///< where in each row of weights the leaf begins; a multiple of 64
  int32_t merges;      ///< stack folds after this leaf's sum has been pushed
  /// If >= 0, the stack's one value is then written to this plane of y, and the stack is empty. The
  /// planes come in the order 0, 1, ... -1 if nothing is written.
  int32_t contribution;
};

/// y[c, m, n] = sum over contribution c's leaves of x[m, k] * W[n, k], with float32 sums. In a
/// leaf, each output is one chain from zero over the columns in ascending order:
/// - bf16: of the tensor cores' multiply_add, 16 columns at a time; columns past the end of the
/// leaf
///   count as 0.
/// - float16: the same, 8 columns at a time, with tf32 factors. It holds the weights exactly, and x
///   is rounded to it, to nearest and from the middle away from zero.
/// - float32: of fused multiply-adds, a column at a time.
/// Leaves then fold as the stack prescribes, and are rounded once per addition. So the bits do not
/// depend on the number of rows, nor on how the work is divided.
struct ShoalProduct {
  int32_t type;     ///< ShoalType of the weights
  int32_t outputs;  ///< rows of W, n
  int32_t rows;     ///< tokens, m
  int32_t leaves;   ///< at most kShoalMostLeaves; with 0 nothing is written
  ShoalLeaf leaf[kShoalMostLeaves];
  /// [outputs][weight_stride]. In each row a leaf begins at its weights_at and is padded with zeros
  /// to a multiple of 64 columns. The matrix is aligned to 128 bytes. No kernel may write it,
  /// because a product may read it before earlier kernels on its stream have ended.
  const void* weights;
  int64_t weight_stride;  ///< a multiple of 64
  /// [rows][x_stride] activations; rows are aligned to 16 bytes. Columns outside every leaf are not
  /// used, even if they hold NaN. A leaf that begins at a multiple of 16 bytes is read faster.
  const void* x;
  int64_t x_stride;
  /// [contributions][rows][outputs]; rows y_stride apart. Null: the leaves' sums stay in scratch,
  /// as ShoalAddNorm::sums, for which they must make one contribution.
  float* y;
  int64_t y_stride;
  int64_t plane_stride;  ///< from one contribution's plane to the next
  /// [leaves][rows][outputs]: the leaves' sums, if each leaf gets thread blocks of its own.
  /// Otherwise the sums that wait to be folded. Must not overlap y, and is aligned to 16 bytes.
  /// shoal_product_scratch_floats says how much is enough.
  float* scratch;
  int64_t scratch_floats;
};

/// The floats of ShoalProduct::scratch that are enough for a product of up to `rows` rows whose
/// leaves are folded. There is room for 256 tiles at once, which keep a large device busy. A
/// product of more tiles takes turns, each of which is a launch, and never more than 8 of them. A
/// given shape (product_with) may need leaves * rows * outputs instead.
inline int64_t shoal_product_scratch_floats(int64_t outputs, int64_t rows, int64_t leaves) {
  if (outputs <= 0 || rows <= 0 || leaves <= 1) return 0;
  const int64_t most_split = kShoalMostSplitRows, side = kShoalLargeTile;
  const int64_t split = leaves * (rows < most_split ? rows : most_split) * outputs;
  const int64_t across = (outputs + side - 1) / side, down = (rows + side - 1) / side;
  const int64_t most_turns = 8, busy = (256 + across - 1) / across;
  const int64_t least = (down + most_turns - 1) / most_turns;
  const int64_t at_once = least < busy ? busy : least;
  const int64_t tiles = across * (down < at_once ? down : at_once);
  const int64_t kept = tiles * side * side * kShoalMostKeptSums;
  return split < kept ? kept : split;
}

/// out[t, :] = float(table[ids[t], :]). The ids are in device memory. One that is not in
/// [0, vocabulary) is not looked up, and its row becomes NaN.
struct ShoalEmbed {
  int32_t type;    ///< ShoalType of the table
  int32_t rows;    ///< tokens
  int32_t hidden;  ///< columns
  int32_t vocabulary;
  const void* table;   ///< [vocabulary][hidden]
  const int32_t* ids;  ///< [rows]
  float* out;          ///< [rows][hidden]
};

/// out = round(x / sqrt(mean(x^2) + eps) * weight) per row, with the CPU's bits: element i is
/// summed in lane i mod 64. The padding of out's rows, up to out_stride, becomes zero.
struct ShoalRmsNorm {
  int32_t type;  ///< ShoalType of out: bf16 or float32
  int32_t rows;
  int32_t cols;  ///< at most 24576, because a row is kept in block memory
  float eps;
  const float* x;       ///< [rows][cols]
  const float* weight;  ///< [cols]
  void* out;            ///< [rows][out_stride]
  int64_t out_stride;
};

/// out = round(silu(gate + its bias) * (up + its bias)), with the CPU's bits. The padding of out's
/// rows, up to out_stride, becomes zero.
struct ShoalSiluMul {
  int32_t type;  ///< ShoalType of out: bf16 or float32
  int32_t rows;
  int32_t cols;
  const float* gate_up;  ///< [rows][2 * cols]: gate, then up
  const float* bias;     ///< [2 * cols], or null: none
  void* out;             ///< [rows][out_stride]
  int64_t out_stride;
};

/// residual += sum + bias, where the bias is added to the sum first. Then, if there is a weight,
/// out is the norm of residual, as ShoalRmsNorm computes it. The sum may come in leaves, which are
/// folded first, as a product folds them. With the CPU's bits. Once all ops before it are done,
/// progress gets a mark, by which the host sees how far the stream is.
struct ShoalAddNorm {
  int32_t type;  ///< ShoalType of out: bf16 or float32
  int32_t rows;
  int32_t cols;                      ///< at most 24576, because a row is kept in block memory
  int32_t leaves;                    ///< at most kShoalMostLeaves; 1: the sum itself
  int32_t merges[kShoalMostLeaves];  ///< ShoalLeaf::merges of each; they leave one value
  const float* sums;                 ///< [leaves][rows][cols]; must not overlap residual
  const float* bias;                 ///< [cols], or null: none
  float* residual;                   ///< [rows][cols]
  const float* weight;               ///< [cols], or null: no norm, and out is left as it is
  float eps;
  void* out;  ///< [rows][out_stride]
  int64_t out_stride;
  uint32_t* progress;  ///< pinned host memory, or null: none
  uint32_t mark;
};

/// A greatest logit and its column: the twin of ArgmaxResult in kernels/args.h.
struct alignas(8) ShoalBest {
  float value;
  int32_t column;
};
/// What one row of logits is cut into, so that several thread blocks read it.
enum { kShoalArgmaxParts = 32 };

/// The greatest of each row and its column; of several that are equal the lowest column, with its
/// sign if they are zeros. NaN is never the greatest. {-infinity, 0} if nothing is greater than
/// -infinity.
struct ShoalArgmax {
  int32_t rows;
  int32_t cols;
  const float* logits;  ///< [rows][stride]
  int64_t stride;
  ShoalBest* scratch;  ///< [rows][kShoalArgmaxParts]
  ShoalBest* best;     ///< [rows]
};

/// Keys that attention folds together, from absolute positions that are multiples of it.
enum { kShoalChunkTokens = 64 };

/// The most heads of a device, and the greatest head dimension.
enum { kShoalMostHeads = 1024, kShoalMostKvHeads = 256, kShoalMostHeadDim = 256 };

/// The rows of a step. Only their number is in the launch; the rest is in device memory, so that a
/// recorded launch computes whatever step is described there.
struct ShoalStepRows {
  int32_t rows;             ///< tokens
  int32_t sequences;        ///< how many the arrays have room for
  const int32_t* position;  ///< [rows]
  /// [rows]: the row's sequence. A row whose number is not in [0, sequences), or whose position has
  /// no place in the block table, is idle, which means that it holds no token.
  const int32_t* sequence;
  /// [sequences] each: rows [first_row, first_row + row_count) are the sequence's, at positions
  /// that follow each other.
  const int32_t* first_row;
  const int32_t* row_count;
  /// [sequences][table_stride]; entry i of a sequence is the block of positions [16 i, 16 i + 16).
  const int32_t* block_table;
  int64_t table_stride;
};

/// One layer of a device's paged KV cache: [block][kv_head] tiles. A tile is K as
/// [kBlockTokens][head_dim], then V as [kBlockTokens][head_dim], so that tokens are rows of 16-byte
/// pieces, both where they are written and where the tensor cores read them. (On the CPU K is
/// [head_dim][kBlockTokens].) If head_dim is no multiple of 16, rows are padded to the next one
/// with zeros, and so are the heads of q, which changes no bit. Aligned to 16 bytes.
struct ShoalKvLayer {
  void* data;
  int32_t type;      ///< ShoalType of the elements
  int32_t kv_heads;  ///< on this device
  int32_t head_dim;  ///< even, at most kShoalMostHeadDim
};

/// Applies the bias, the q/k norm and the rotary embedding to the fused q|k|v product, with the
/// CPU's bits. Then q is rounded to the type of activations, and k and v to that of the cache. The
/// rotation pairs element i with i + head_dim / 2. Idle rows, and rows whose position is not in [0,
/// positions), are left out.
struct ShoalQkv {
  ShoalStepRows step;
  ShoalKvLayer cache;
  int32_t heads;
  int32_t positions;  ///< rows of cos and sin
  float eps;
  const float* qkv;  ///< [rows][qkv_stride]: heads, then kv_heads of k, then kv_heads of v
  int64_t qkv_stride;
  const float* bias;    ///< [(heads + 2 * kv_heads) * head_dim], or null: none
  const float* q_norm;  ///< [head_dim], or null: no norm
  const float* k_norm;
  const float* cos;  ///< [positions][head_dim / 2], with the attention factor multiplied in
  const float* sin;
  void* q;  ///< [rows][q_stride] activations, heads padded as in the cache; aligned to 16 bytes
  int64_t q_stride;  ///< a multiple of 8
};

/// Causal attention of the rows of a step over their sequences' blocks. K and V are only read from
/// the cache. For each row and head, every chunk of 64 keys, which begin at absolute multiples of
/// 64, gets its own maximum, sum of exponentials (P), and P.V from zero. Then the chunks fold from
/// left to right, in float32. What q.k and P.V are depends on the cache's type, and the sum takes P
/// as P.V does:
/// - bf16: chains of the tensor cores' multiply_add, for which P is rounded to bf16.
/// - float16: the same with tf32 factors, for which q and P are rounded.
/// - float32: chains of fused multiply-adds in ascending order. To P.V of a chunk 0 is added at the
///   end, so that whether it is -0 does not depend on keys that the row does not see.
/// Chunks that a row
/// does not see are left out for it, and keys that it does not see weigh exactly 0. So the bits
/// depend on nothing but the row's own q and the keys and values that it sees, as long as these are
/// finite: an infinite value takes its whole chunk along, for all rows that share it. Keys that no
/// row of the sequence sees are not read.
struct ShoalAttention {
  ShoalStepRows step;
  ShoalKvLayer cache;
  int32_t heads;
  /// [kv_heads + 1], from 0 to heads: q heads [head_begin[g], head_begin[g + 1]) read kv head g.
  int32_t head_begin[kShoalMostKvHeads + 1];
  /// A row at position p sees the keys in (p - window, p]; with 0, all keys up to p.
  int32_t window;
  float scale;
  const void* q;     ///< [rows][q_stride] (ShoalQkv::q); aligned to 16 bytes
  int64_t q_stride;  ///< a multiple of 8
  /// [rows][out_stride] activations. The padding of rows is set to zero, and so are idle rows.
  void* out;
  int64_t out_stride;
  /// If > 0, every chunk gets thread blocks of its own, which is quicker for few rows. This is then
  /// the most chunks that a row may see; one that sees more becomes NaN. With 0 a thread block goes
  /// over all chunks.
  int32_t split_chunks;
  /// For split_chunks > 0: attention_scratch_floats(...) of them.
  float* scratch;
  int64_t scratch_floats;
};

/// One step of the tensor cores for each tile: sum += a * b. A row or column of a factor has eight
/// words: 16 bf16 numbers (kShoalBf16), or 8 of tf32 (kShoalF16, whose products take them).
struct ShoalTiles {
  int32_t type;
  int32_t tiles;
  const uint32_t* a;  ///< [tiles][16][8], by rows
  const uint32_t* b;  ///< [tiles][8][8], by columns
  float* sum;         ///< [tiles][16][8]: the addends, and then the results
};

/// The operations of which the other ops are made.
enum ShoalOperations {
  kShoalAdd = 0,
  kShoalMultiply,
  kShoalFusedMultiplyAdd,
  kShoalDivide,
  kShoalSquareRoot,
  kShoalExponential,
  kShoalToBf16,
  kShoalToF16,
  kShoalFromF16,  ///< of the first 16 bits of x
  kShoalToTf32,
  kShoalOperations
};
/// One operation on each of several numbers.
struct ShoalOperation {
  int32_t operation;  ///< ShoalOperations
  int64_t count;
  const float* x;  ///< [count], like y and z
  const float* y;  ///< read by operations of two numbers, but always given
  const float* z;  ///< of three
  uint32_t* out;   ///< [count]: the bits of the results
};
}
