// Causal attention over the paged cache. There are two ways to divide it, with the same bits:
//
// whole: for many rows. A thread block goes over all chunks of keys that its pairs see, and folds
// them from left to right in registers. If there are many pairs, and they are bfloat16, each warp
// has some of its own.
//
// split: for few rows. A thread block computes one chunk, so that all of a device reads the cache
// at once, and leaves its maximum, sum and P.V in scratch memory. A second kernel folds them, with
// the same operations in the same order.
#include <algorithm>
#include <cuda_runtime.h>
#include <initializer_list>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_block.cuh"
#include "kernels/cuda/attention_fold.cuh"
#include "kernels/cuda/attention_warps.cuh"
#include "kernels/cuda/entries.h"

namespace shoal::cuda {
namespace {

/// Writes zeros to the row's columns from `column` on, which no head writes.
__device__ void clear_row(const ShoalAttention& args, int64_t row, int64_t column) {
  for (column += threadIdx.x; column < args.out_stride; column += blockDim.x)
    store_element(args.out, activation_type(args.cache.type), row * args.out_stride + column, 0);
}
__device__ int64_t columns_of(const ShoalAttention& args) {
  return static_cast<int64_t>(args.heads) * args.cache.head_dim;
}

/// Goes over the chunks of the work. The keys of a chunk come while the values of the one before it
/// are multiplied, and its values while the keys are. If both have one buffer, each comes only when
/// the other has been multiplied.
template <class Shape, class Sink>
__device__ void attend(const ShoalAttention& args, const Work& work) {
  const AttentionMemory<Shape> memory(row_elements(args.cache));
  const AttentionLoader<Shape> loader(args, work, memory);
  const Attender<Shape> attender(memory, row_elements(args.cache));
  constexpr bool kOneBuffer = Shape::Format::kOneBuffer;
  constexpr int kUnderWay = kOneBuffer ? 0 : 1;
  Sink sink(args, memory);
  int32_t block = loader.begin();
  if (!kOneBuffer) loader.load_values(work.begin_chunk, block);
  copy_async_commit();
#pragma unroll 1
  for (int chunk = work.begin_chunk; chunk < work.end_chunk; ++chunk) {
    const bool more = chunk + 1 < work.end_chunk;
    const int32_t next = more ? loader.block_of(chunk + 1) : block;
    copy_async_wait<kUnderWay>();
    __syncthreads();  // the keys have come
    __syncwarp();     // lanes may have parted to load, and they have to multiply together
    attender.score(args.scale);
    __syncthreads();  // the scores are there, and nobody reads the keys any more
    if (kOneBuffer) loader.load_values(chunk, block);
    if (!kOneBuffer && more) loader.load_keys(chunk + 1, next);
    copy_async_commit();
    attender.weigh(chunk,
                   [&](int at, float max, float sum) { sink.take_sum(chunk, at, max, sum); });
    copy_async_wait<kUnderWay>();
    __syncthreads();  // the values have come, and the weights and what became of the sums are there
    __syncwarp();
    Weighted<Shape> sums;
    attender.weigh_values(sums);
    sink.take_values(chunk, attender, sums);
    __syncthreads();  // nobody reads the values and the weights any more
    if (more) kOneBuffer ? loader.load_keys(chunk + 1, next) : loader.load_values(chunk + 1, next);
    copy_async_commit();
    block = next;
  }
  sink.finish(attender);
}

template <class Format, int kPairFragments, int kDimFragments>
__device__ void attend_whole(AttentionShape<Format, kPairFragments, kDimFragments>,
                             const ShoalAttention& args, const Work& work) {
  using Shape = AttentionShape<Format, kPairFragments, kDimFragments>;
  attend<Shape, FoldInRegisters<Shape>>(args, work);
}
template <int kDimFragments, int kAtOnce>
__device__ void attend_whole(WarpShape<kDimFragments, kAtOnce>, const ShoalAttention& args,
                             const Work& work) {
  attend_by_warps<WarpShape<kDimFragments, kAtOnce>>(args, work);
}

/// Blocks: kv heads x pairs, which have two axes, because one may be too short. The last rows see
/// the most keys, so the blocks of all kv heads for them come first, and the last to come are
/// short. Each block clears some of what no head writes, too.
template <class Shape>
__global__ void __launch_bounds__(kAttentionThreads, Shape::kAtOnce)
    whole_kernel(const __grid_constant__ ShoalAttention args) {
  await_earlier_kernels();
  const int64_t blocks = int64_t{gridDim.y} * gridDim.z;
  const int64_t block = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  for (int64_t row = block * gridDim.x + blockIdx.x; row < args.step.rows;
       row += blocks * gridDim.x)
    clear_row(args, row, attending_place(args.step, row).is_idle() ? 0 : columns_of(args));
  Work work;
  if (find_work(args, static_cast<int>(blockIdx.x), blocks - 1 - block, Shape::kPairs, &work))
    attend_whole(Shape{}, args, work);
}

/// Blocks: pairs x kv heads x chunks.
template <class Shape>
__global__ void __launch_bounds__(kAttentionThreads)
    split_kernel(const __grid_constant__ ShoalAttention args) {
  await_earlier_kernels();
  Work work;
  if (!find_work(args, static_cast<int>(blockIdx.y), blockIdx.x, Shape::kPairs, &work)) return;
  work.begin_chunk += static_cast<int>(blockIdx.z);
  if (work.begin_chunk >= work.end_chunk) return;
  work.end_chunk = work.begin_chunk + 1;
  attend<Shape, LeaveInScratch<Shape>>(args, work);
}

/// Blocks: heads x rows.
__global__ void __launch_bounds__(kFoldThreads)
    fold_chunks_kernel(const __grid_constant__ ShoalAttention args) {
  let_next_kernel_begin();
  await_earlier_kernels();
  const auto head = static_cast<int>(blockIdx.x);
  for (int64_t row = blockIdx.y; row < args.step.rows; row += gridDim.y) {
    const RowPlace place = attending_place(args.step, row);
    if (head == 0) clear_row(args, row, place.is_idle() ? 0 : columns_of(args));
    if (place.is_idle()) continue;
    const int first = first_key(args, place.position) / kChunkKeys;
    const int chunks = place.position / kChunkKeys - first + 1;
    ChunkFold fold(args, row, head);
    if (chunks > args.split_chunks) fold.become_nan();
    for (int chunk = 0; chunk < chunks && chunks <= args.split_chunks; chunk += kFoldThreads)
      fold.take(chunk, chunks - chunk < kFoldThreads ? chunks - chunk : kFoldThreads);
    fold.finish();
  }
}

int most_heads_of_group(const ShoalAttention& args) {
  int most = 0;
  for (int i = 0; i < args.cache.kv_heads; ++i)
    most = std::max(most, args.head_begin[i + 1] - args.head_begin[i]);
  return most;
}

/// The blocks of a kv head, each for `pairs` pairs. Every sequence begins a new block, so there may
/// be one more for each sequence.
int64_t blocks_of_pairs(const ShoalAttention& args, int pairs) {
  return tiles(int64_t{args.step.rows} * most_heads_of_group(args), pairs) + args.step.sequences;
}

template <class Shape>
cudaError_t run_whole(const ShoalAttention& args, void* stream) {
  const int64_t blocks = blocks_of_pairs(args, Shape::kPairs);
  const int64_t layers = tiles(blocks, kMostBlocksY);
  const Grid grid{args.cache.kv_heads, tiles(blocks, layers), layers};
  return launch_early(&whole_kernel<Shape>, grid, kAttentionThreads,
                      Shape::shared_bytes(row_elements(args.cache)), args, stream);
}

template <class Shape>
cudaError_t run_split(const ShoalAttention& args, void* stream) {
  // With a window, the rows of one block may begin in two chunks.
  const Grid grid{blocks_of_pairs(args, Shape::kPairs), args.cache.kv_heads,
                  args.split_chunks + (args.window > 0 ? 1 : 0)};
  const size_t bytes = Shape::shared_bytes(row_elements(args.cache));
  const cudaError_t error =
      launch_early(&split_kernel<Shape>, grid, kAttentionThreads, bytes, args, stream);
  if (error != cudaSuccess) return error;
  const Grid folds{args.heads, std::min<int64_t>(args.step.rows, kMostBlocksY), 1};
  return launch_early(&fold_chunks_kernel, folds, kFoldThreads, sizeof(FoldMemory), args, stream);
}

template <class Shape>
cudaError_t load_whole() {
  return load_kernel(&whole_kernel<Shape>, Shape::shared_bytes(Shape::kMostHeadDim));
}
template <class Shape>
cudaError_t load_split() {
  return load_kernel(&split_kernel<Shape>, Shape::shared_bytes(Shape::kMostHeadDim));
}

cudaError_t first_error(std::initializer_list<cudaError_t> errors) {
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

/// The shapes for small, usual and large heads.
template <class Small, class Usual, class Large>
struct Shapes {
  static cudaError_t run_whole(const ShoalAttention& args, void* stream) {
    const int d = row_elements(args.cache);
    if (d <= Small::kMostHeadDim) return cuda::run_whole<Small>(args, stream);
    if (d <= Usual::kMostHeadDim) return cuda::run_whole<Usual>(args, stream);
    return cuda::run_whole<Large>(args, stream);
  }
  static cudaError_t run_split(const ShoalAttention& args, void* stream) {
    const int d = row_elements(args.cache);
    if (d <= Small::kMostHeadDim) return cuda::run_split<Small>(args, stream);
    if (d <= Usual::kMostHeadDim) return cuda::run_split<Usual>(args, stream);
    return cuda::run_split<Large>(args, stream);
  }
  static cudaError_t load_whole() {
    return first_error(
        {cuda::load_whole<Small>(), cuda::load_whole<Usual>(), cuda::load_whole<Large>()});
  }
  static cudaError_t load_split() {
    return first_error(
        {cuda::load_split<Small>(), cuda::load_split<Usual>(), cuda::load_split<Large>()});
  }
};

template <int kPairFragments, int kDimFragments>
using Bf16Shape = AttentionShape<Bf16Attention, kPairFragments, kDimFragments>;
/// Eight pairs in a block, and 32.
using Narrow = Shapes<Bf16Shape<1, 1>, Bf16Shape<1, 2>, Bf16Shape<1, 4>>;
using Wide = Shapes<Bf16Shape<4, 1>, Bf16Shape<4, 2>, Bf16Shape<4, 4>>;
/// A block has 64 pairs. The last number of each shape is how many blocks a multiprocessor's
/// registers are enough for.
using Warps = Shapes<WarpShape<4, 3>, WarpShape<8, 2>, WarpShape<16, 2>>;
/// The only shape of a type that is rare. Block memory has no room for more pairs of its q.
template <class Format>
using RareShape = AttentionShape<Format, 2, 4>;

enum Way { kWholeNarrow, kWholeWide, kSplitNarrow, kSplitWide, kWays };

cudaError_t run_bf16(const ShoalAttention& args, Way way, void* stream) {
  switch (way) {
    case kWholeNarrow:
      return Narrow::run_whole(args, stream);
    case kWholeWide:
      return Warps::run_whole(args, stream);
    case kSplitNarrow:
      return Narrow::run_split(args, stream);
    default:
      return Wide::run_split(args, stream);
  }
}

template <class Format>
cudaError_t run_rare(const ShoalAttention& args, bool split, void* stream) {
  using Shape = RareShape<Format>;
  return split ? run_split<Shape>(args, stream) : run_whole<Shape>(args, stream);
}

bool heads_are_valid(const ShoalAttention& args) {
  if (!in_range(args.heads, 1, kShoalMostHeads) || args.head_begin[0] != 0) return false;
  for (int i = 0; i < args.cache.kv_heads; ++i) {
    if (args.head_begin[i + 1] < args.head_begin[i]) return false;
  }
  return args.head_begin[args.cache.kv_heads] == args.heads;
}

bool is_valid(const ShoalAttention& args) {
  if (!is_valid_step(args.step) || !is_valid_cache(args.cache) || !heads_are_valid(args))
    return false;
  const int64_t columns = int64_t{args.heads} * args.cache.head_dim;
  return int64_t{args.step.rows} * args.heads <= kMostExtent && args.window >= 0 &&
         is_valid_q(args.q, args.q_stride, int64_t{args.heads} * row_elements(args.cache)) &&
         is_given(args.out, element_bytes(activation_type(args.cache.type))) &&
         in_range(args.out_stride, columns, kMostStride);
}

bool can_split(const ShoalAttention& args) {
  return in_range(args.split_chunks, 1, kMostBlocksY - 1) &&
         is_given(args.scratch, sizeof(float)) &&
         args.scratch_floats >= attention_scratch_floats(args.step.rows, args.heads,
                                                         args.cache.head_dim, args.split_chunks);
}

}  // namespace

int64_t attention_scratch_floats(int32_t rows, int32_t heads, int32_t head_dim,
                                 int32_t split_chunks) {
  if (rows <= 0 || heads <= 0 || head_dim <= 0 || split_chunks <= 0) return 0;
  return int64_t{rows} * heads * split_chunks * (row_elements(head_dim) + 2);
}

int32_t attention_ways() {
  return kWays;
}

int32_t attention_with(const ShoalAttention* args, int32_t way, void* stream) {
  if (!in_range(way, 0, kWays - 1)) return cudaErrorInvalidValue;
  if (args->step.rows == 0) return cudaSuccess;
  const bool split = way == kSplitNarrow || way == kSplitWide;
  if (!is_valid(*args) || (split && !can_split(*args))) return cudaErrorInvalidValue;
  if (args->cache.type == kShoalF32) return run_rare<F32Attention>(*args, split, stream);
  if (args->cache.type == kShoalF16) return run_rare<F16Attention>(*args, split, stream);
  return run_bf16(*args, static_cast<Way>(way), stream);
}

int32_t attention(const ShoalAttention* args, void* stream) {
  if (args->step.rows == 0) return cudaSuccess;
  if (!is_valid(*args)) return cudaErrorInvalidValue;
  // If the pairs of most sequences fit into a narrow block, a wide one would multiply zeros.
  const int64_t pairs = int64_t{args->step.rows} * most_heads_of_group(*args);
  const bool wide = pairs > int64_t{Bf16Shape<1, 1>::kPairs} * args->step.sequences;
  if (args->split_chunks > 0) return attention_with(args, wide ? kSplitWide : kSplitNarrow, stream);
  return attention_with(args, wide ? kWholeWide : kWholeNarrow, stream);
}

int32_t load_attention() {
  return first_error({load_whole<RareShape<F16Attention>>(), load_split<RareShape<F16Attention>>(),
                      load_whole<RareShape<F32Attention>>(), load_split<RareShape<F32Attention>>(),
                      Narrow::load_whole(), Warps::load_whole(), Narrow::load_split(),
                      Wide::load_split(), load_kernel(&fold_chunks_kernel)});
}

}  // namespace shoal::cuda
