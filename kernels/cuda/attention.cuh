#pragma once
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/attention_formats.cuh"
#include "kernels/cuda/machine.cuh"
#include "kernels/cuda/paged.cuh"

/// The part of attention that one thread block computes: some (row, head) pairs of one sequence
/// that read the same kv head, over some chunks of keys. Keys and values are the rows of operand A,
/// and the pairs are the columns of B. So every pair has a column of its own, and nothing here
/// decides a bit: not what the other columns are, nor in which block a chunk is. How A and B are
/// multiplied depends on the cache's type (attention_formats.cuh).
namespace shoal::cuda {

/// Keys of a chunk, as on the CPU. Chunks begin at multiples of this.
inline constexpr int kChunkKeys = 64;
inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = 32 * kAttentionWarps;
static_assert(kChunkKeys == kAttentionWarps * kBlockTokens, "a warp computes a block's scores");

inline constexpr int kScoreStride = kChunkKeys + 4;

/// A row and head, and the keys [first, last] that it sees. The row is -1 if there is none.
struct Pair {
  int32_t row, head, first, last;
};
/// The keys that a pair sees of a chunk, counted from the chunk's beginning.
struct KeyRange {
  int begin, end;
  __device__ bool has(int key) const { return begin <= key && key < end; }
  __device__ bool is_empty() const { return begin >= end; }
};
__device__ inline KeyRange keys_of(const Pair& pair, int chunk) {
  const int begin = pair.first - chunk * kChunkKeys, end = pair.last + 1 - chunk * kChunkKeys;
  return {begin < 0 ? 0 : begin, end > kChunkKeys ? kChunkKeys : end};
}

/// The softmax of a pair over all chunks so far, and what the last one scaled it with.
struct Running {
  float max, sum, old_scale, new_scale;
};

/// The keys that a row at this position sees begin here.
__device__ inline int first_key(const ShoalAttention& args, int position) {
  return args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
}

/// The place of a row. It is idle, too, if its sequence does not know it.
__device__ inline RowPlace attending_place(const ShoalStepRows& step, int64_t row) {
  const RowPlace place = place_of(step, row);
  if (place.is_idle()) return place;
  const int64_t index = row - load_global(step.first_row + place.sequence);
  const bool known = index >= 0 && index < load_global(step.row_count + place.sequence);
  return {known ? place.sequence : -1, place.position};
}

/// What a block computes.
struct Work {
  int sequence, kv_head;
  int first_row;           ///< of the sequence, in the step
  int group, first_head;   ///< the heads that read the kv head
  int pair, end_pair;      ///< counted from the sequence's first row, by rows and then by heads
  int position;            ///< of the sequence's first row
  int begin_key, end_key;  ///< what some pair sees
  int begin_chunk, end_chunk;
};

/// Sets the pairs of the slot-th block that begins in a row, if there is one. Of a sequence's
/// pairs, every block has `pairs` that follow each other.
__device__ inline bool find_pairs(const ShoalAttention& args, int row, int slot, int pairs,
                                  Work* work) {
  const ShoalStepRows& step = args.step;
  const RowPlace place = attending_place(step, row);
  work->first_head = args.head_begin[work->kv_head];
  work->group = args.head_begin[work->kv_head + 1] - work->first_head;
  if (place.is_idle() || work->group == 0) return false;
  work->sequence = place.sequence;
  work->first_row = load_global(step.first_row + place.sequence);
  const int index = row - work->first_row, group = work->group;
  work->pair = ((index * group + pairs - 1) / pairs + slot) * pairs;
  if (work->pair >= (index + 1) * group) return false;
  int rows = load_global(step.row_count + place.sequence);
  if (rows > step.rows - work->first_row) rows = step.rows - work->first_row;
  // Rows behind the end of the block table are idle.
  work->position = place.position - index;
  const int64_t end = step.table_stride * kBlockTokens - work->position;
  if (rows > end) rows = static_cast<int>(end);
  work->end_pair = work->pair + pairs < rows * group ? work->pair + pairs : rows * group;
  return true;
}

/// Sets all of `work` for this block. Blocks: rows and their slots x kv heads. False: it has none.
__device__ inline bool find_work(const ShoalAttention& args, int pairs, Work* work) {
  const int slots = static_cast<int>(gridDim.x) / args.step.rows;
  const int at = static_cast<int>(blockIdx.x);
  work->kv_head = static_cast<int>(blockIdx.y);
  if (!find_pairs(args, at / slots, at % slots, pairs, work)) return false;
  work->begin_key = first_key(args, work->position + work->pair / work->group);
  work->end_key = work->position + (work->end_pair - 1) / work->group + 1;
  work->begin_chunk = work->begin_key / kChunkKeys;
  work->end_chunk = (work->end_key - 1) / kChunkKeys + 1;
  return true;
}

/// The shape of a block: its pairs in fragments of eight, and the most fragments of head_dim that a
/// warp has.
template <class F, int PairFragments, int DimFragments>
struct AttentionShape {
  using Format = F;
  using Element = typename F::Element;
  using Activation = typename F::Activation;
  static constexpr int kPairFragments = PairFragments;
  static constexpr int kDimFragments = DimFragments;
  static constexpr int kPairs = 8 * PairFragments;
  static constexpr int kMostHeadDim = kAttentionWarps * DimFragments * kHeadDimUnit;
  static_assert(PairFragments == 1 || PairFragments % 2 == 0, "they are loaded in twos");

  /// The distance from one row to the next in block memory: in keys and values, then in q, then in
  /// weights.
  __host__ __device__ static constexpr int cache_stride(int head_dim) {
    return head_dim + kRowPiece<Element>;
  }
  __host__ __device__ static constexpr int q_stride(int head_dim) {
    return head_dim + kRowPiece<Activation>;
  }
  static constexpr int kWeightStride = kChunkKeys + kRowPiece<Activation>;
  static constexpr int kCacheRows = F::kOneBuffer ? kChunkKeys : 2 * kChunkKeys;

  static constexpr size_t shared_bytes(int head_dim) {
    return static_cast<size_t>(kCacheRows * cache_stride(head_dim)) * sizeof(Element) +
           static_cast<size_t>(kPairs * (q_stride(head_dim) + kWeightStride)) * sizeof(Activation) +
           kPairs * (kScoreStride * sizeof(float) + sizeof(Pair) + sizeof(Running));
  }
  static_assert(shared_bytes(kMostHeadDim) <= kMostSharedBytes);
};

/// Where everything of a block is in its memory.
template <class Shape>
struct AttentionMemory {
  using Activation = typename Shape::Activation;
  typename Shape::Element *keys, *values;  ///< of the chunk, a row per key
  Activation* q;                           ///< a row per pair
  Activation* weights;                     ///< Format::weight(exp(score - max)), a row per pair
  float* scores;                           ///< a row per pair
  Pair* pairs;
  Running* running;
  int stride;  ///< of keys and values
  int q_stride;

  __device__ explicit AttentionMemory(int head_dim)
      : stride(Shape::cache_stride(head_dim)), q_stride(Shape::q_stride(head_dim)) {
    keys = reinterpret_cast<typename Shape::Element*>(block_memory());
    values = Shape::Format::kOneBuffer ? keys : keys + kChunkKeys * stride;
    q = reinterpret_cast<Activation*>(values + kChunkKeys * stride);
    weights = q + Shape::kPairs * q_stride;
    scores = reinterpret_cast<float*>(weights + Shape::kPairs * Shape::kWeightStride);
    pairs = reinterpret_cast<Pair*>(scores + Shape::kPairs * kScoreStride);
    running = reinterpret_cast<Running*>(pairs + Shape::kPairs);
  }
};

/// Copies what a block needs into its memory. Eight threads copy a row.
template <class Shape>
class AttentionLoader {
 public:
  __device__ AttentionLoader(const ShoalAttention& args, const Work& work,
                             const AttentionMemory<Shape>& memory)
      : args_(args), work_(work), memory_(memory) {}

  __device__ void set_pairs() const {
    const auto at = static_cast<int>(threadIdx.x);
    if (at >= Shape::kPairs) return;
    const int pair = work_.pair + at;
    Pair made{-1, 0, 0, -1};
    if (pair < work_.end_pair) {
      const int index = pair / work_.group, position = work_.position + index;
      made = {work_.first_row + index, work_.first_head + pair % work_.group,
              first_key(args_, position), position};
    }
    memory_.pairs[at] = made;
  }

  /// After set_pairs and a barrier.
  __device__ void load_q() const {
    for (int first = 0; first < Shape::kPairs; first += kRowsAtOnce) {
      const int at = first + row();
      if (at >= Shape::kPairs) break;
      const Pair& pair = memory_.pairs[at];
      const bool take = pair.row >= 0;
      const auto* from = static_cast<const typename Shape::Activation*>(args_.q);
      if (take) from += pair.row * args_.q_stride + pair.head * row_elements(args_.cache);
      copy_row(memory_.q + at * memory_.q_stride, from, take);
    }
  }

  /// Keys that no pair of the block sees are not read, because they need not exist, and become
  /// zeros.
  __device__ void load_keys(int chunk) const { load_tokens(memory_.keys, chunk, 0); }
  __device__ void load_values(int chunk) const {
    load_tokens(memory_.values, chunk, values_of_tile(args_.cache));
  }

 private:
  static constexpr int kThreadsOfRow = 8;
  static constexpr int kRowsAtOnce = kAttentionThreads / kThreadsOfRow;
  static_assert(kRowsAtOnce == kBlockTokens, "a block is copied at once");
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kThreadsOfRow; }

  template <class T>
  __device__ void copy_row(T* to, const T* from, bool take) const {
    constexpr int kPiece = kRowPiece<T>;
    const int pieces = row_elements(args_.cache) / kPiece;
    for (int i = static_cast<int>(threadIdx.x) % kThreadsOfRow; i < pieces; i += kThreadsOfRow)
      copy_async(to + i * kPiece, from + i * kPiece, take);
  }

  /// in_tile: where in a tile the rows begin.
  __device__ void load_tokens(typename Shape::Element* to, int chunk, int in_tile) const {
    const ShoalKvLayer& cache = args_.cache;
#pragma unroll
    for (int first = 0; first < kChunkKeys; first += kBlockTokens) {
      const int block = chunk * kChunkKeys + first, key = block + row();
      const bool take = key >= work_.begin_key && key < work_.end_key;
      const auto* from = static_cast<const typename Shape::Element*>(cache.data);
      if (take) {
        from += tile_of(cache, args_.step, work_.sequence, block, work_.kv_head) + in_tile +
                row() * row_elements(cache);
      }
      copy_row(to + (first + row()) * memory_.stride, from, take);
    }
  }

  const ShoalAttention& args_;
  const Work& work_;
  const AttentionMemory<Shape>& memory_;
};

/// This warp's part of P.V: fragments of head_dim x fragments of pairs, as multiply_add leaves
/// them.
template <class Shape>
struct Weighted {
  float value[Shape::kDimFragments][Shape::kPairFragments][4];
};

/// Computes with what is in block memory.
template <class Shape>
class Attender {
  using Format = typename Shape::Format;
  using Pairs = typename Format::template Pairs<Shape::kPairFragments>;

 public:
  __device__ Attender(const AttentionMemory<Shape>& memory, int head_dim)
      : memory_(memory), head_dim_(head_dim) {}

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  /// scale * q.k for this warp's sixteen keys and all pairs.
  __device__ void score(float scale) const {
    float sums[Shape::kPairFragments][4] = {};
    const int stride = memory_.stride;
    const auto* const keys = memory_.keys + warp() * kBlockTokens * stride;
#pragma unroll 2
    for (int i = 0; i < head_dim_; i += Format::kStep) {
      Pairs q;
      q.load(memory_.q, memory_.q_stride, i);
      Format::add_keys(sums, keys + i, stride, q);
    }
#pragma unroll
    for (int f = 0; f < Shape::kPairFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = f * 8 + lane() % 4 * 2 + i % 2;
        const int key = warp() * kBlockTokens + lane() / 4 + i / 2 * 8;
        memory_.scores[pair * kScoreStride + key] = __fmul_rn(sums[f][i], scale);
      }
    }
  }

  /// Turns the scores of a chunk into weights, of which those of unseen keys are exactly 0. Calls
  /// found(pair's place, max, sum) in one thread for each pair that sees some of the chunk.
  template <class Found>
  __device__ void weigh(int chunk, const Found& found) const {
    const int lane16 = lane() % 16;
#pragma unroll
    for (int first = 0; first < Shape::kPairs; first += 2 * kAttentionWarps) {
      const int at = first + warp() * 2 + lane() / 16;
      const KeyRange keys = keys_of(memory_.pairs[at], chunk);
      const float* const scores = memory_.scores + at * kScoreStride;
      float x[4], max = __uint_as_float(0xff800000);  // -infinity
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = scores[16 * i + lane16];
        if (keys.has(16 * i + lane16) && !(max > x[i])) max = x[i];
      }
      max = max_of_sixteen(max);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = keys.has(16 * i + lane16);
        x[i] = seen ? Format::weight(exponential(__fadd_rn(x[i], -max))) : 0.0f;
        memory_.weights[at * Shape::kWeightStride + 16 * i + lane16] = Format::rounded(x[i]);
      }
      const float sum = sum_of_sixteen(__fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3])));
      if (lane16 == 0 && !keys.is_empty()) found(at, max, sum);
    }
  }

  /// P.V of the chunk, from zero.
  __device__ void weigh_values(Weighted<Shape>& sums) const {
    sums = {};
    const int stride = memory_.stride;
    // More steps of float32 at once would take registers that they do not have.
    [[maybe_unused]] constexpr int kSteps = Format::kStep == 4 ? 2 : kChunkKeys / Format::kStep;
#pragma unroll kSteps
    for (int key = 0; key < kChunkKeys; key += Format::kStep) {
      Pairs weights;
      weights.load(memory_.weights, Shape::kWeightStride, key);
#pragma unroll
      for (int d = 0; d < Shape::kDimFragments; ++d) {
        if (dim_of(d) >= head_dim_) break;
        Format::add_values(sums.value[d], memory_.values + key * stride + dim_of(d), stride,
                           weights);
      }
    }
  }

  /// Where this warp's d-th fragment begins in head_dim.
  __device__ static int dim_of(int d) {
    return (d * kAttentionWarps + warp()) * kHeadDimUnit;
  }

  /// Calls body(pair's place, f, half) for this lane's two columns of every fragment.
  template <class Body>
  __device__ static void for_columns(const Body& body) {
#pragma unroll
    for (int f = 0; f < Shape::kPairFragments; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) body(f * 8 + lane() % 4 * 2 + half, f, half);
    }
  }
  /// Calls body(element of the head, d, index) for this lane's values of a column.
  template <class Body>
  __device__ void for_dims(int half, const Body& body) const {
#pragma unroll
    for (int d = 0; d < Shape::kDimFragments; ++d) {
      if (dim_of(d) >= head_dim_) break;
      body(dim_of(d) + lane() / 4, d, half);
      body(dim_of(d) + lane() / 4 + 8, d, half + 2);
    }
  }

 private:
  __device__ static float max_of_sixteen(float x) {
#pragma unroll
    for (int apart = 8; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, x, apart);
      x = other > x ? other : x;
    }
    return x;
  }

  const AttentionMemory<Shape>& memory_;
  const int head_dim_;
};

}  // namespace shoal::cuda
