// Products. There are two ways to divide them, with the same bits:
//
// split: for few tokens. A thread block computes one leaf, so that all of a device reads weights at
// once, and leaves its sums in scratch memory. A second kernel folds them.
//
// stacked: for many tokens. A thread block computes all leaves, one after the other, and folds them
// as they come. The last sum that waits to be folded stays in registers. At most three more are in
// scratch memory, where only the threads that wrote them read them again. The sums of all leaves
// are never there at once.
#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/host_checks.h"
#include "kernels/cuda/machine.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/product_formats.cuh"

namespace shoal::cuda {
namespace {

constexpr int kFoldLeavesThreads = 128;

/// The sums on the stack below the topmost one, which the caller holds. They are in scratch memory,
/// [block][level][fragment of a warp][thread], because registers are too few for more than one
/// tile. A thread reads only what it has written itself, so nobody waits for anybody.
template <class Tile>
class KeptSums {
 public:
  static constexpr int64_t kFloats = int64_t{kShoalMostKeptSums} * Tile::kOutputs * Tile::kTokens;

  __device__ static void keep(const ShoalProduct& args, const Sums<Tile>& top, int level) {
    Four* to = place(args, level);
#pragma unroll
    for (int f = 0; f < Tile::kOutputFragments; ++f) {
#pragma unroll
      for (int t = 0; t < Tile::kTokenFragments; ++t) {
        const float* const sum = top.value[f][t];
        store_global(to, Four{{sum[0], sum[1], sum[2], sum[3]}});
        to += Tile::kThreads;
      }
    }
  }
  __device__ static void merge_into(Sums<Tile>& top, const ShoalProduct& args, int level) {
    const Four* from = place(args, level);
#pragma unroll
    for (int f = 0; f < Tile::kOutputFragments; ++f) {
#pragma unroll
      for (int t = 0; t < Tile::kTokenFragments; ++t) {
        const Four kept = load_global(from);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          top.value[f][t][i] = __fadd_rn(kept.value[i], top.value[f][t][i]);
        from += Tile::kThreads;
      }
    }
  }

 private:
  /// Where this thread's sums of a level begin in scratch memory. The address is computed each time
  /// it is used, because keeping it would take registers that the sums need.
  __device__ static Four* place(const ShoalProduct& args, int level) {
    constexpr unsigned kFours = Tile::kOutputFragments * Tile::kTokenFragments * Tile::kThreads;
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    return reinterpret_cast<Four*>(args.scratch) +
           (block * kShoalMostKeptSums + static_cast<unsigned>(level)) * kFours + threadIdx.x;
  }
};

/// The tile of a block. Those of neighbouring tokens are neighbours in the grid, so that blocks
/// that run at the same time read the same weights.
template <class Tile>
__device__ Corner corner_of_block() {
  return {static_cast<int>(blockIdx.y) * Tile::kOutputs,
          static_cast<int>(blockIdx.x) * Tile::kTokens};
}

struct LeafArgs {
  ShoalProduct product;
  bool to_scratch;  ///< whether sums go there, to be folded, and not to their plane of y
};

/// One leaf. Blocks: tiles of tokens x tiles of outputs x leaves.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    leaf_kernel(const __grid_constant__ LeafArgs launch) {
  const ShoalProduct& args = launch.product;
  const int index = static_cast<int>(blockIdx.z);
  const ShoalLeaf& leaf = args.leaf[index];
  const Corner corner = corner_of_block<Tile>();
  const Multiplier<Tile> multiplier;
  Pipeline<Tile> pipeline(args, corner, index, index + 1);
  Sums<Tile> sums;
  pipeline.next_leaf(sums, multiplier, leaf.end - leaf.begin);
  if (launch.to_scratch) {
    float* const plane = args.scratch + int64_t{index} * args.rows * args.outputs;
    multiplier.store(sums, args, corner, plane, args.outputs);
  } else {
    float* const plane = args.y + leaf.contribution * args.plane_stride;
    multiplier.store(sums, args, corner, plane, args.y_stride);
  }
}

/// Folds the leaves' sums in scratch memory. Blocks: groups of outputs x rows.
__global__ void __launch_bounds__(kFoldLeavesThreads)
    fold_leaves_kernel(const __grid_constant__ ShoalProduct args) {
  await_earlier_kernels();
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kFoldLeavesThreads + threadIdx.x;
  if (output >= args.outputs) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    float sums[kShoalMostLeaves] = {};
#pragma unroll
    for (int leaf = 0; leaf < kShoalMostLeaves; ++leaf) {
      const int64_t at = (leaf * static_cast<int64_t>(args.rows) + row) * args.outputs + output;
      if (leaf < args.leaves) sums[leaf] = load_global(args.scratch + at);
    }
    Stack<float> stack;
#pragma unroll
    for (int i = 0; i < kShoalMostLeaves; ++i) {
      if (i >= args.leaves) break;
      const ShoalLeaf& leaf = args.leaf[i];
      stack.push(sums[i]);
      for (int merges = leaf.merges; merges > 0; --merges) stack.merge();
      if (leaf.contribution < 0) continue;
      // The value stays below what is pushed next, where no valid program merges it again.
      float* const plane = args.y + leaf.contribution * args.plane_stride;
      store_global(plane + row * args.y_stride + output, stack.top());
    }
  }
}

/// All leaves. Blocks: tiles of tokens x tiles of outputs.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    stacked_kernel(const __grid_constant__ ShoalProduct args) {
  const Corner corner = corner_of_block<Tile>();
  const Multiplier<Tile> multiplier;
  Pipeline<Tile> pipeline(args, corner, 0, args.leaves);
  Sums<Tile> top;
  int depth = 0;
#pragma unroll 1
  for (int i = 0; i < args.leaves; ++i) {
    const ShoalLeaf& leaf = args.leaf[i];
    if (depth > 0) KeptSums<Tile>::keep(args, top, depth - 1);
    pipeline.next_leaf(top, multiplier, leaf.end - leaf.begin);
    ++depth;
#pragma unroll 1
    for (int merges = leaf.merges; merges > 0; --merges) {
      --depth;
      KeptSums<Tile>::merge_into(top, args, depth - 1);
    }
    if (leaf.contribution < 0) continue;
    depth = 0;
    float* const plane = args.y + leaf.contribution * args.plane_stride;
    multiplier.store(top, args, corner, plane, args.y_stride);
  }
}

bool merges(const ShoalProduct& args) {
  return std::any_of(args.leaf, args.leaf + args.leaves,
                     [](const ShoalLeaf& leaf) { return leaf.merges > 0; });
}

template <class Tile, class Args>
cudaError_t launch_tiles(void (*kernel)(Args), const ShoalProduct& product, int leaves,
                         const Args& args, void* stream) {
  const Grid grid{tiles(product.rows, Tile::kTokens), tiles(product.outputs, Tile::kOutputs),
                  leaves};
  if (grid.y > kMostBlocksY) return cudaErrorInvalidValue;
  return launch_early(kernel, grid, Tile::kThreads, Tile::kSharedBytes, args, stream);
}

template <class Tile>
cudaError_t run_split(const ShoalProduct& args, void* stream) {
  const bool unfolded = args.y == nullptr, to_scratch = unfolded || merges(args);
  if (to_scratch && args.scratch_floats < int64_t{args.leaves} * args.rows * args.outputs)
    return cudaErrorInvalidValue;
  const cudaError_t error =
      launch_tiles<Tile>(&leaf_kernel<Tile>, args, args.leaves, LeafArgs{args, to_scratch}, stream);
  if (error != cudaSuccess || unfolded || !to_scratch) return error;
  const Grid grid{tiles(args.outputs, kFoldLeavesThreads),
                  std::min<int64_t>(args.rows, kMostBlocksY), 1};
  return launch_early(&fold_leaves_kernel, grid, kFoldLeavesThreads, 0, args, stream);
}

/// Computes the rows in parts. Each part has the most rows for which scratch memory has room. A
/// program that merges nothing needs no stack, so it takes the way of run_split.
template <class Tile>
cudaError_t run_stacked(const ShoalProduct& args, void* stream) {
  if (!merges(args) || args.y == nullptr) return run_split<Tile>(args, stream);
  const int64_t room =
      args.scratch_floats / (KeptSums<Tile>::kFloats * tiles(args.outputs, Tile::kOutputs));
  if (room < 1) return cudaErrorInvalidValue;
  const int64_t rows_at_once = room * Tile::kTokens;
  ShoalProduct part = args;
  for (int64_t row = 0; row < args.rows; row += rows_at_once) {
    part.rows = static_cast<int32_t>(std::min(rows_at_once, args.rows - row));
    part.x = static_cast<const typename Tile::Format::Input*>(args.x) + row * args.x_stride;
    part.y = args.y + row * args.y_stride;
    const cudaError_t error = launch_tiles<Tile>(&stacked_kernel<Tile>, part, 1, part, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class Format>
using Narrow = Tile<Format, 4, 1, 1, 1, 5>;  // 64 outputs x 8 tokens
template <class Format>
using Short = Tile<Format, 4, 1, 1, 4, 4>;  // 64 x 32
template <class Format>
using Square = Tile<Format, 4, 1, 1, 8, 3>;     // 64 x 64
using Slim = Tile<Bf16Format, 2, 1, 1, 1, 8>;   // 32 x 8
using Large = Tile<Bf16Format, 2, 2, 4, 8, 3>;  // 128 x 128
static_assert(Large::kOutputs == kShoalLargeTile && Large::kTokens == kShoalLargeTile);

enum Shape { kSlim, kNarrow, kShort, kSplitSquare, kSquare, kLarge, kShapes };

/// Only bf16, the usual type, has slim and large blocks.
template <class Format>
cudaError_t run_shape(const ShoalProduct& args, int shape, void* stream) {
  switch (shape) {
    case kSlim:
      if (args.type == kShoalBf16) return run_split<Slim>(args, stream);
      return run_split<Narrow<Format>>(args, stream);
    case kNarrow:
      return run_split<Narrow<Format>>(args, stream);
    case kShort:
      return run_split<Short<Format>>(args, stream);
    case kSplitSquare:
      return run_split<Square<Format>>(args, stream);
    case kLarge:
      if (args.type == kShoalBf16) return run_stacked<Large>(args, stream);
  }
  return run_stacked<Square<Format>>(args, stream);
}

cudaError_t run_type(const ShoalProduct& args, int shape, void* stream) {
  switch (args.type) {
    case kShoalBf16:
      return run_shape<Bf16Format>(args, shape, stream);
    case kShoalF16:
      return run_shape<F16Format>(args, shape, stream);
    case kShoalF32:
      return run_shape<F32Format>(args, shape, stream);
  }
  return cudaErrorInvalidValue;
}

template <class Format>
cudaError_t load_format() {
  const cudaError_t errors[] = {
      load_kernel(&leaf_kernel<Narrow<Format>>, Narrow<Format>::kSharedBytes),
      load_kernel(&leaf_kernel<Short<Format>>, Short<Format>::kSharedBytes),
      load_kernel(&leaf_kernel<Square<Format>>, Square<Format>::kSharedBytes),
      load_kernel(&stacked_kernel<Square<Format>>, Square<Format>::kSharedBytes),
  };
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

/// With fewer narrow blocks than this some multiprocessors have little to do, and slim blocks are
/// faster. These numbers, and the order in choose(), were measured with bfloat16 on an H200, which
/// has 132 multiprocessors: this one in bench/results/h200-2026-11-26-steps.txt, the others in
/// h200-2026-11-26-shapes.txt, when a large block had eight warps instead of four.
constexpr int64_t kManyNarrow = 200;
/// From this many large blocks on, they are faster than smaller ones. With fewer, a part of the
/// device would be idle.
constexpr int64_t kManyLarge = 112;
/// From this many square blocks on, they are faster than blocks with half as many tokens.
constexpr int64_t kManySquares = 256;

Shape choose(const ShoalProduct& args) {
  using OfNarrow = Narrow<Bf16Format>;
  using OfShort = Short<Bf16Format>;  // the extents of a shape are those of every type
  using OfSquare = Square<Bf16Format>;
  if (args.rows <= OfNarrow::kTokens) {
    const int64_t narrow = tiles(args.outputs, OfNarrow::kOutputs) * args.leaves;
    return narrow < kManyNarrow ? kSlim : kNarrow;
  }
  static_assert(OfShort::kTokens == kShoalMostUnfoldedRows);
  if (args.rows <= OfShort::kTokens) return kShort;
  const int64_t squares = tiles(args.outputs, OfSquare::kOutputs) * args.leaves;
  if (args.rows <= OfSquare::kTokens) return squares < kManySquares ? kShort : kSplitSquare;
  const int64_t large = tiles(args.outputs, Large::kOutputs) * tiles(args.rows, Large::kTokens);
  if (large >= kManyLarge) return kLarge;
  return args.rows <= kShoalMostSplitRows ? kSplitSquare : kSquare;
}

/// Weights of a leaf are padded to a multiple of this, which is one of every type's stage.
constexpr int kLeafColumns = 64;

/// Whether the leaves lie inside the rows of both factors.
bool leaves_are_valid(const ShoalProduct& args) {
  for (int i = 0; i < args.leaves; ++i) {
    const ShoalLeaf& leaf = args.leaf[i];
    if (leaf.begin < 0 || leaf.end <= leaf.begin) return false;
    if (leaf.end > args.x_stride || leaf.end > kMostExtent) return false;
    const int64_t padded = tiles(int64_t{leaf.end} - leaf.begin, kLeafColumns) * kLeafColumns;
    if (!in_range(leaf.weights_at, 0, args.weight_stride - padded)) return false;
    if (leaf.weights_at % kLeafColumns != 0) return false;
  }
  return true;
}

/// The number of planes that the stack's program writes, or -1 if it is no program: it needs a
/// deeper stack, merges what is not there, or does not end with an empty stack.
int contributions_of(const ShoalProduct& args) {
  int depth = 0, written = 0;
  for (int i = 0; i < args.leaves; ++i) {
    const ShoalLeaf& leaf = args.leaf[i];
    if (++depth > kShoalMostKeptSums + 1 || !in_range(leaf.merges, 0, depth - 1)) return -1;
    depth -= leaf.merges;
    if (leaf.contribution < 0) continue;
    if (depth != 1 || leaf.contribution != written) return -1;
    depth = 0;
    ++written;
  }
  return depth == 0 ? written : -1;
}

/// A product that writes something. What a shape needs besides is checked where it runs.
bool is_valid(const ShoalProduct& args) {
  if (args.outputs > kMostExtent || args.rows > kMostExtent) return false;
  if (!is_type(args.type)) return false;
  if (!is_given(args.weights, 128) || !is_given(args.x, kChunkBytes) ||
      !is_given_or_null(args.y, sizeof(float)))
    return false;
  if (!in_range(args.weight_stride, 1, kMostStride) || args.weight_stride % kLeafColumns != 0)
    return false;
  const int64_t chunk = args.type == kShoalBf16 ? kChunk<uint16_t> : kChunk<float>;
  if (!in_range(args.x_stride, 1, kMostStride) || args.x_stride % chunk != 0) return false;
  if (args.scratch_floats < 0 || !is_given_or_null(args.scratch, sizeof(Four))) return false;
  if (args.scratch == nullptr && args.scratch_floats > 0) return false;
  const int planes = contributions_of(args);
  if (args.y == nullptr) return planes == 1 && leaves_are_valid(args);
  if (!in_range(args.y_stride, args.outputs, kMostStride)) return false;
  const int64_t plane_floats = (args.rows - 1) * args.y_stride + args.outputs;
  return planes >= 1 && (planes == 1 || args.plane_stride >= plane_floats) &&
         leaves_are_valid(args);
}

}  // namespace

int32_t product_shapes() {
  return kShapes;
}

int32_t product_with(const ShoalProduct* args, int32_t shape, void* stream) {
  if (!in_range(shape, 0, kShapes - 1)) return cudaErrorInvalidValue;
  if (args->outputs < 0 || args->rows < 0 || !in_range(args->leaves, 0, kShoalMostLeaves))
    return cudaErrorInvalidValue;
  if (args->outputs == 0 || args->rows == 0 || args->leaves == 0) return cudaSuccess;
  return is_valid(*args) ? run_type(*args, shape, stream) : cudaErrorInvalidValue;
}

int32_t product_shape(const ShoalProduct* args) {
  return choose(*args);
}

int32_t product(const ShoalProduct* args, void* stream) {
  return product_with(args, product_shape(args), stream);
}

int32_t load_product() {
  const cudaError_t errors[] = {
      load_format<Bf16Format>(),
      load_format<F16Format>(),
      load_format<F32Format>(),
      load_kernel(&leaf_kernel<Slim>, Slim::kSharedBytes),
      load_kernel(&leaf_kernel<Large>, Large::kSharedBytes),
      load_kernel(&stacked_kernel<Large>, Large::kSharedBytes),
      load_kernel(&fold_leaves_kernel),
  };
  for (const cudaError_t error : errors) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace shoal::cuda
