#pragma once
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/cuda/machine.cuh"
#include "runtime/device/cuda_ops.h"

/// The part of a product that one thread block computes: some outputs of some tokens, over the
/// leaves that it is given. The columns go through block memory in stages, and several stages are
/// under way while one is multiplied. Nothing here decides a bit: an output's chain is the same in
/// every tile. How a stage is multiplied depends on the weights' type (product_formats.cuh).
namespace shoal::cuda {

inline constexpr int kWarpLanes = 32;
/// Bytes that are copied together.
inline constexpr int kChunkBytes = 16;
template <class Element>
inline constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(Element));
/// What one multiply_add takes of outputs and tokens. Sums have its layout whatever the type is.
inline constexpr int kFragmentOutputs = 16;
inline constexpr int kFragmentTokens = 8;

/// Where chunk `chunk` of row `row` lies in a stage, in bytes. The chunks of a row are permuted, so
/// that the eight rows which a warp reads at one column are in different banks.
template <int kRowBytes>
__device__ inline int chunk_place(int row, int chunk) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  // Eight rows take all banks once, or if they are short, two rows at a time.
  const int turn = kRowBytes == 128 ? row % 8 : row / 2 % 4;
  return row * kRowBytes + (chunk ^ turn) * kChunkBytes;
}

/// Rows of one factor in a stage, and what of them each thread copies: the same chunk of every
/// kRowsAtOnce-th row, beginning with row().
template <class E, int Columns, int Rows, int Threads>
struct StageRows {
  using Element = E;
  static constexpr int kCount = Rows;
  static constexpr int kRowBytes = Columns * static_cast<int>(sizeof(E));
  static constexpr int kBytes = Rows * kRowBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  static constexpr int kRowsAtOnce = Threads / kChunks;
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kChunks; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int place(int row, int chunk) { return chunk_place<kRowBytes>(row, chunk); }
};

/// The shape of a block's work. Each warp holds OutputFragments x TokenFragments sums of 16 x 8.
template <class F, int OutputWarps, int TokenWarps, int OutputFragments, int TokenFragments,
          int Stages>
struct Tile {
  using Format = F;
  static constexpr int kOutputWarps = OutputWarps;
  static constexpr int kOutputFragments = OutputFragments;
  static constexpr int kTokenFragments = TokenFragments;
  static constexpr int kStages = Stages;
  static constexpr int kThreads = OutputWarps * TokenWarps * kWarpLanes;
  static constexpr int kOutputs = OutputWarps * OutputFragments * kFragmentOutputs;
  static constexpr int kTokens = TokenWarps * TokenFragments * kFragmentTokens;
  using Weights = StageRows<typename F::Weight, F::kStageColumns, kOutputs, kThreads>;
  using Tokens = StageRows<typename F::Input, F::kStageColumns, kTokens, kThreads>;
  static constexpr int kStageBytes = Weights::kBytes + Tokens::kBytes;
  static constexpr size_t kSharedBytes = static_cast<size_t>(Stages) * kStageBytes;
  static_assert(kOutputs % Weights::kRowsAtOnce == 0);
  static_assert(TokenFragments == 1 || TokenFragments % 2 == 0, "they are loaded in pairs");
  static_assert(kSharedBytes <= 99 * 1024, "the least that a supported device has for a block");
};

/// Four floats, which one instruction moves.
struct alignas(16) Four {
  float value[4];
};

/// Sets the first `count` elements of a chunk in block memory, and the others to zero. For what
/// copy_async cannot copy: chunks of which a part counts as zero, and those that are not aligned.
/// They are rare, so the loop saves registers and not time.
template <class Element>
__device__ inline void copy_elements(Element* to_block_memory, const Element* from, int count) {
#pragma unroll 1
  for (int i = 0; i < kChunk<Element>; ++i)
    to_block_memory[i] = i < count ? load_global(from + i) : Element{};
}

/// This warp's sums. Index: fragment of outputs, fragment of tokens, value as in multiply_add.
template <class Tile>
struct Sums {
  float value[Tile::kOutputFragments][Tile::kTokenFragments][4];
};

__device__ inline int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % kWarpLanes;
}

/// Where the block's work begins. Parts of a tile may lie past the last output or token.
struct Corner {
  int output, token;
};

/// Brings stage after stage of the weights and of x into block memory, in the order of the leaves.
template <class Tile>
class Loader {
 public:
  /// The stages of leaves [leaf, end_leaf).
  __device__ Loader(const ShoalProduct& args, Corner corner, int leaf, int end_leaf)
      : args_(args), corner_(corner), first_leaf_(leaf), leaf_(leaf), end_leaf_(end_leaf) {
    weights_ = static_cast<const Weight*>(args.weights) +
               (corner.output + Weights::row()) * args.weight_stride +
               Weights::chunk() * kChunk<Weight>;
    tokens_ = static_cast<const Input*>(args.x) + (corner.token + Tokens::row()) * args.x_stride +
              Tokens::chunk() * kChunk<Input>;
  }

  /// Begins to load the weights of the first stages, as far as they are of the first leaf. This may
  /// be done before earlier kernels have ended, because no kernel writes weights: the host has
  /// copied them before the first step. x and scratch must wait.
  __device__ void load_first_weights(unsigned char* stages, int count) {
    const ShoalLeaf& leaf = args_.leaf[leaf_];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int column = i * Tile::Format::kStageColumns;
      if (column < leaf.end - leaf.begin)
        load_weights<0>(stages + i * Tile::kStageBytes, leaf.weights_at + column, [](int) {});
    }
  }

  /// Begins to load the next stage, and commits one group. Without a stage left, the group is
  /// empty, so that waits count in the same way until the end. kFirst: whether load_first_weights
  /// was for this stage, too. between: called with 0, 1, ... kSteps - 1, where that fits.
  template <bool kFirst, int kSteps, class Between>
  __device__ void load_next(unsigned char* stage, const Between& between) {
    if (leaf_ < end_leaf_) {
      const ShoalLeaf& leaf = args_.leaf[leaf_];
      if (!kFirst || leaf_ != first_leaf_)
        load_weights<kSteps>(stage, leaf.weights_at + column_, between);
      load_tokens(stage + Weights::kBytes, leaf);
      column_ += Tile::Format::kStageColumns;
      if (column_ >= leaf.end - leaf.begin) {
        column_ = 0;
        ++leaf_;
      }
    } else {
      for_steps<0, kSteps>(between);
    }
    copy_async_commit();
  }

 private:
  using Weights = typename Tile::Weights;
  using Tokens = typename Tile::Tokens;
  using Weight = typename Weights::Element;
  using Input = typename Tokens::Element;

  template <int kFrom, int kTo, class Between>
  __device__ static void for_steps(const Between& between) {
#pragma unroll
    for (int step = kFrom; step < kTo; ++step) between(step);
  }

  /// at: the column of a row of weights. A step of `between` follows each copy.
  template <int kSteps, class Between>
  __device__ void load_weights(unsigned char* to, int64_t at, const Between& between) const {
    constexpr int kCopies = Weights::kCount / Weights::kRowsAtOnce;
    const Weight* from = weights_ + at;
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) {
      const int row = copy * Weights::kRowsAtOnce + Weights::row();
      const bool take = corner_.output + row < args_.outputs;
      copy_weights_async(to + Weights::place(row, Weights::chunk()),
                         take ? from : static_cast<const Weight*>(args_.weights), take);
      from += Weights::kRowsAtOnce * args_.weight_stride;
      if (copy < kSteps) between(copy);
    }
    for_steps<kCopies, kSteps>(between);
  }

  __device__ void load_tokens(unsigned char* to, const ShoalLeaf& leaf) const {
    // The columns of the leaf from this chunk on. What follows them belongs to others.
    const int left = leaf.end - leaf.begin - column_ - Tokens::chunk() * kChunk<Input>;
    const bool whole = left >= kChunk<Input> && leaf.begin % kChunk<Input> == 0;
    const Input* const from = tokens_ + leaf.begin + column_;
    // The chunks of a thread are all of the same columns.
    if (whole || left <= 0) {
      load_token_rows<true>(to, from, whole ? kChunk<Input> : 0);
    } else {
      load_token_rows<false>(to, from, left);
    }
  }
  /// Loads the first `count` elements of each chunk. kWhole: `count` is the whole chunk or 0.
  template <bool kWhole>
  __device__ void load_token_rows(unsigned char* to, const Input* from, int count) const {
#pragma unroll
    for (int first = 0; first < Tokens::kCount; first += Tokens::kRowsAtOnce) {
      const int row = first + Tokens::row();
      if (row >= Tokens::kCount) break;
      const bool present = corner_.token + row < args_.rows;
      unsigned char* const chunk_at = to + Tokens::place(row, Tokens::chunk());
      if (kWhole || !present) {
        const bool take = kWhole && present && count > 0;
        copy_async(chunk_at, take ? from : static_cast<const Input*>(args_.x), take);
      } else {
        copy_elements(reinterpret_cast<Input*>(chunk_at), from, count);
      }
      from += Tokens::kRowsAtOnce * args_.x_stride;
    }
  }

  const ShoalProduct& args_;
  const Corner corner_;
  const int first_leaf_;
  int leaf_;
  const int end_leaf_;
  int column_ = 0;  ///< of the next stage, counted from the beginning of its leaf
  /// This thread's chunk of its first row. The columns are counted from zero.
  const Weight* weights_;
  const Input* tokens_;
};

/// What a warp holds of a stage in registers before it multiplies: all of it in small tiles of
/// bf16, else nothing, and then each step is loaded on its own (product_formats.cuh).
template <class Tile>
using StageOperands = typename Tile::Format::template Held<Tile>;

/// Where this warp's sums are in the tile, and where they go.
template <class Tile>
class Multiplier {
 public:
  __device__ Multiplier() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    output_ = warp % Tile::kOutputWarps * Tile::kOutputFragments * kFragmentOutputs;
    token_ = warp / Tile::kOutputWarps * Tile::kTokenFragments * kFragmentTokens;
  }

  /// Loads what this warp multiplies of a stage into registers.
  __device__ void load_stage(StageOperands<Tile>& operands, const unsigned char* stage) const {
    operands.load(stage, output_, token_);
  }

  /// Adds the first `columns` of a stage. A step without any column is left out, because adding its
  /// zeros could turn -0 into +0. Calls load_more() once, where it fits.
  template <class LoadMore>
  __device__ void add_stage(Sums<Tile>& sums, const unsigned char* stage, int columns,
                            const LoadMore& load_more) const {
    using Format = typename Tile::Format;
    constexpr int kStep = Format::kStepColumns;
    const bool whole = columns > Format::kStageColumns - Format::kLeastColumns;
    if constexpr (Format::template kLoadsAhead<Tile>) {
      if (whole) return Format::template add_stage<Tile>(sums, stage, output_, token_, load_more);
    }
    load_more();
    if (whole) {
#pragma unroll
      for (int step = 0; step < Format::kStageColumns / kStep; ++step)
        Format::template add_step<Tile>(sums, stage, output_, token_, step, kStep);
      return;
    }
#pragma unroll 1
    for (int step = 0; step * kStep < columns; ++step)
      Format::template add_step<Tile>(sums, stage, output_, token_, step, columns - step * kStep);
  }

  /// Writes this warp's sums to a plane [rows][outputs], whose rows are `stride` apart.
  __device__ void store(const Sums<Tile>& sums, const ShoalProduct& args, Corner corner,
                        float* plane, int64_t stride) const {
    const int output = corner.output + output_ + lane_of_warp() / 4;
    int token = corner.token + token_ + lane_of_warp() % 4 * 2;
    // The pointer moves from row to row, because an offset for each row would take a register for
    // each row.
    float* at = plane + token * stride + output;
#pragma unroll
    for (int t = 0; t < Tile::kTokenFragments; ++t) {
      if (token < args.rows) store_row<0>(sums, t, at, args.outputs - output);
      if (token + 1 < args.rows) store_row<1>(sums, t, at + stride, args.outputs - output);
      token += kFragmentTokens;
      at += kFragmentTokens * stride;
    }
  }

 private:
  /// Writes the sums of one token: number kColumn of this lane's two in a fragment. left: how
  /// many outputs the plane has from this lane's first one on.
  template <int kColumn>
  __device__ static void store_row(const Sums<Tile>& sums, int t, float* at, int left) {
#pragma unroll
    for (int f = 0; f < Tile::kOutputFragments; ++f) {
      const int first = f * kFragmentOutputs, second = first + kFragmentOutputs / 2;
      if (first < left) store_global(at + first, sums.value[f][t][kColumn]);
      if (second < left) store_global(at + second, sums.value[f][t][2 + kColumn]);
    }
  }

  int output_, token_;  ///< where this warp's sums begin in the tile
};

/// The stages of a block, as a ring in block memory: kStages - 1 are under way while one is
/// multiplied.
template <class Tile>
class Pipeline {
 public:
  /// The sums of leaves [leaf, end_leaf), to be asked for in this order. Only weights are loaded
  /// before earlier kernels have ended.
  __device__ Pipeline(const ShoalProduct& args, Corner corner, int leaf, int end_leaf)
      : loader_(args, corner, leaf, end_leaf) {
    loader_.load_first_weights(stage(0), Tile::kStages - 1);
    await_earlier_kernels();
#pragma unroll
    for (int i = 0; i < Tile::kStages - 1; ++i)
      loader_.template load_next<true, 0>(stage(i), [](int) {});
  }

  /// Sets sums to those of the next leaf, which has this many columns.
  __device__ void next_leaf(Sums<Tile>& sums, const Multiplier<Tile>& multiplier, int columns) {
    sums = {};
#pragma unroll 1
    for (; columns > 0; columns -= Tile::Format::kStageColumns) {
      copy_async_wait<Tile::kStages - 2>();
      // Every thread's part of this stage has come, and nobody reads the stage before it any more,
      // whose place the next load takes.
      __syncthreads();
      __syncwarp();  // lanes may have parted to load, and they have to multiply together
      unsigned char* const next = stage(current_ == 0 ? Tile::kStages - 1 : current_ - 1);
      if constexpr (StageOperands<Tile>::kHeld) {
        // The products wait for each other, so what begins the next load fits between them.
        StageOperands<Tile> operands;
        multiplier.load_stage(operands, stage(current_));
        loader_.template load_next<false, StageOperands<Tile>::kSteps>(
            next, [&](int step) { operands.add(sums, step, columns); });
      } else {
        multiplier.add_stage(sums, stage(current_), columns, [&] {
          loader_.template load_next<false, 0>(next, [](int) {});
          // Lanes may have parted to load the end of a leaf, and they have to multiply together.
          __syncwarp();
        });
      }
      current_ = current_ + 1 == Tile::kStages ? 0 : current_ + 1;
    }
  }

 private:
  __device__ static unsigned char* stage(int index) {
    return block_memory() + index * Tile::kStageBytes;
  }

  Loader<Tile> loader_;
  int current_ = 0;  ///< the stage that is multiplied next
};

}  // namespace shoal::cuda
