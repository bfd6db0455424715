#pragma once
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/attention_formats.cuh"
#include "kernels/cuda/machine.cuh"
#include "kernels/cuda/paged.cuh"

/// The part of attention that one thread block computes: some (row, head) pairs of one sequence
/// that read the same kv head, over some chunks of keys. The pairs are the columns of operand B
/// where a block's threads share them (attention_block.cuh), and the rows of A where each warp has
/// its own (attention_warps.cuh); keys and values are the other operand. So every pair has a
/// column, or a row, of its own, and nothing here decides a bit: neither the other pairs, nor the
/// block that a chunk is in. (Only a value that is infinite or NaN reaches pairs of the block that
/// do not see it, because 0 times it is NaN.) How A and B are multiplied depends on the cache's
/// type (attention_formats.cuh).
namespace shoal::cuda {

/// Keys of a chunk, as on the CPU. Chunks begin at multiples of this.
inline constexpr int kChunkKeys = 64;
inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = 32 * kAttentionWarps;
static_assert(kChunkKeys % kBlockTokens == 0, "a chunk is whole tiles of the cache");

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

/// Sets *work to the pairs that block number `slot` of a sequence computes. Each block of a
/// sequence has the next `pairs` pairs of it. Returns false if the sequence has no pair for this
/// block.
__device__ inline bool take_pairs(const ShoalAttention& args, int slot, int pairs, Work* work) {
  const ShoalStepRows& step = args.step;
  const int group = work->group;
  work->first_row = load_global(step.first_row + work->sequence);
  work->pair = slot * pairs;
  const int index = work->pair / group;
  const int64_t row = int64_t{work->first_row} + index;
  if (row < 0 || row >= step.rows) return false;
  const RowPlace place = attending_place(step, row);
  if (place.sequence != work->sequence) return false;
  int rows = load_global(step.row_count + work->sequence);
  if (rows > step.rows - work->first_row) rows = step.rows - work->first_row;
  // Rows behind the end of the block table are idle.
  work->position = place.position - index;
  const int64_t end = step.table_stride * kBlockTokens - work->position;
  if (rows > end) rows = static_cast<int>(end);
  work->end_pair = work->pair + pairs < rows * group ? work->pair + pairs : rows * group;
  return work->pair < work->end_pair;
}

/// Finds the sequence and the pairs of block number `at` of those that a kv head has, of which the
/// first sequence's come first.
__device__ inline bool find_pairs(const ShoalAttention& args, int64_t at, int pairs, Work* work) {
  work->first_head = args.head_begin[work->kv_head];
  work->group = args.head_begin[work->kv_head + 1] - work->first_head;
#pragma unroll 4
  for (work->sequence = 0; work->sequence < args.step.sequences; ++work->sequence) {
    const int64_t rows = load_global(args.step.row_count + work->sequence);
    const int64_t blocks = (rows * work->group + pairs - 1) / pairs;
    if (at < blocks) return take_pairs(args, static_cast<int>(at), pairs, work);
    if (blocks > 0) at -= blocks;
  }
  return false;
}

/// Sets all of `work` for block number `at` of those that a kv head has. Some have no pairs: then
/// it is false.
__device__ inline bool find_work(const ShoalAttention& args, int kv_head, int64_t at, int pairs,
                                 Work* work) {
  work->kv_head = kv_head;
  if (!find_pairs(args, at, pairs, work)) return false;
  work->begin_key = first_key(args, work->position + work->pair / work->group);
  work->end_key = work->position + (work->end_pair - 1) / work->group + 1;
  work->begin_chunk = work->begin_key / kChunkKeys;
  work->end_chunk = (work->end_key - 1) / kChunkKeys + 1;
  return true;
}

/// Where the operands of a block are in its memory.
template <class Shape>
struct OperandMemory {
  using Activation = typename Shape::Activation;
  typename Shape::Element *keys, *values;  ///< of the chunk, a row per key
  Activation* q;                           ///< a row per pair
  int stride;                              ///< of keys and values
  int q_stride;

  __device__ explicit OperandMemory(int head_dim)
      : stride(Shape::cache_stride(head_dim)), q_stride(Shape::q_stride(head_dim)) {
    keys = reinterpret_cast<typename Shape::Element*>(block_memory());
    values = Shape::Format::kOneBuffer ? keys : keys + kChunkKeys * stride;
    q = reinterpret_cast<Activation*>(values + kChunkKeys * stride);
  }

  /// Number `at` of the block's pairs. It lies behind its row of q, where no product reads.
  __device__ Pair& pair(int at) const {
    return *reinterpret_cast<Pair*>(q + at * q_stride + q_stride - kRowPiece<Activation>);
  }
  static_assert(sizeof(Pair) == kRowPiece<Activation> * sizeof(Activation));
};

/// Copies what a block needs into its memory. A warp copies one block of the cache in each chunk.
/// Eight lanes copy a row. What stays the same for all chunks is found once.
template <class Shape>
class AttentionLoader {
  using Element = typename Shape::Element;
  using Activation = typename Shape::Activation;

 public:
  __device__ AttentionLoader(const ShoalAttention& args, const Work& work,
                             const OperandMemory<Shape>& memory)
      : args_(args),
        work_(work),
        memory_(memory),
        row_elements_(row_elements(args.cache)),
        in_half_(row() * row_elements_ + first_element<Element>()) {}

  /// Sets the pairs, and begins to copy q and the first chunk's keys, as one group of copies.
  /// Returns the warp's block of the chunk.
  __device__ int32_t begin() const {
    const int32_t block = block_of(work_.begin_chunk);
    set_pairs();
    __syncthreads();
    load_q();
    load_keys(work_.begin_chunk, block);
    copy_async_commit();
    return block;
  }

  /// The warp's block of the cache. To be called some time before the chunk is loaded, because the
  /// block table is in device memory. For a block that no pair sees, another one of the sequence.
  __device__ int32_t block_of(int chunk) const {
    int key = chunk * kChunkKeys + first_token();
    key = key < work_.begin_key ? work_.begin_key : key;
    key = key < work_.end_key ? key : work_.end_key - 1;
    return load_global(args_.step.block_table + work_.sequence * args_.step.table_stride +
                       key / kBlockTokens);
  }

  /// Keys that no pair of the block sees are not read, because they need not exist, and become
  /// zeros.
  __device__ void load_keys(int chunk, int32_t block) const {
    load_tokens(memory_.keys, chunk, block, 0);
  }
  __device__ void load_values(int chunk, int32_t block) const {
    load_tokens(memory_.values, chunk, block, 1);
  }

 private:
  static constexpr int kThreadsOfRow = 8;
  static constexpr int kRowsAtOnce = 32 / kThreadsOfRow;
  static_assert(kChunkKeys == kAttentionWarps * kBlockTokens, "a warp copies a block");
  /// The warp's first key of a chunk.
  __device__ static int first_token() { return static_cast<int>(threadIdx.x) / 32 * kBlockTokens; }
  /// The row of this lane, among the rows that a warp copies at once.
  __device__ static int row() { return static_cast<int>(threadIdx.x) % 32 / kThreadsOfRow; }

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
    memory_.pair(at) = made;
  }

  __device__ void load_q() const {
    constexpr int kRows = kAttentionThreads / kThreadsOfRow;
    for (int first = 0; first < Shape::kPairs; first += kRows) {
      const int at = first + static_cast<int>(threadIdx.x) / kThreadsOfRow;
      if (at >= Shape::kPairs) break;
      const Pair& pair = memory_.pair(at);
      const bool take = pair.row >= 0;
      const auto* from = static_cast<const Activation*>(args_.q);
      if (take) from += pair.row * args_.q_stride + pair.head * row_elements_;
      const int element = first_element<Activation>();
      copy_row(memory_.q + at * memory_.q_stride + element, from + element, take);
    }
  }

  /// Where in a row the thread's pieces begin.
  template <class T>
  __device__ static int first_element() {
    return static_cast<int>(threadIdx.x) % kThreadsOfRow * kRowPiece<T>;
  }
  /// The thread's pieces of a row, whose first one is given.
  template <class T>
  __device__ void copy_row(T* to, const T* from, bool take) const {
#pragma unroll
    for (int i = 0; i < Shape::kMostHeadDim; i += kThreadsOfRow * kRowPiece<T>) {
      if (first_element<T>() + i < row_elements_) copy_async(to + i, from + i, take);
    }
  }

  /// half: of a tile, 0 for keys and 1 for values. There are less than 2^32 halves, because each
  /// has at least 512 bytes.
  __device__ void load_tokens(Element* to, int chunk, int32_t block, uint32_t half) const {
    const uint32_t tile = static_cast<uint32_t>(block) * args_.cache.kv_heads + work_.kv_head;
    const auto* const from =
        static_cast<const Element*>(args_.cache.data) +
        uint64_t{2 * tile + half} * static_cast<uint32_t>(kBlockTokens * row_elements_) +
        static_cast<uint32_t>(in_half_);
    const int first = first_token() + row();
    to += first * memory_.stride + first_element<Element>();
    // Long rows are copies enough, and the addresses of several would take registers.
    [[maybe_unused]] constexpr int kUnrolled = Shape::kMostHeadDim > 128 ? 1 : 4;
#pragma unroll kUnrolled
    for (int i = 0; i < kBlockTokens; i += kRowsAtOnce) {
      const int key = chunk * kChunkKeys + first + i;
      const bool take = key >= work_.begin_key && key < work_.end_key;
      copy_row(to + i * memory_.stride, from + i * row_elements_, take);
    }
  }

  const ShoalAttention& args_;
  const Work& work_;
  const OperandMemory<Shape>& memory_;
  const int row_elements_;
  const int in_half_;  ///< the thread's first element in half a tile
};

}  // namespace shoal::cuda
