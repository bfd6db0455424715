#pragma once
#include "kernels/args.h"
#include "kernels/cpu/product.h"

// Products of many rows where the processor has no dot product for the weights' type. Weights and
// inputs are widened to float32 once for a chunk of columns, so that the innermost loop is loads,
// broadcasts and multiply-adds alone. Its order of columns is that of kernels/cpu/matmul.cc, and
// between two chunks a sum is stored as the float32 that it is, so that all bits are the same.
//
// A chunk of a tile's weights stays in the first-level cache while all rows of a block pass it, and
// the block's inputs and sums stay in the second level, as in Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication" (2008).

namespace shoal::SHOAL_ISA {
namespace {

/// A tile is what registers hold: kTileRows rows x kTileVecs vectors of sums, and beside them one
/// input and the weights of one k.
#if defined(__AVX512F__)
constexpr int kTileRows = 12, kTileVecs = 2;  // 24 of 32 registers
#else
constexpr int kTileRows = 6, kTileVecs = 1;  // 12 of AVX2's 16 registers, 24 of NEON's 32
#endif
constexpr int kTileOutputs = kTileVecs * kLanes;
/// Columns of a chunk, which take 16 KiB of a tile's weights.
constexpr int kChunkColumns = 256 / kTileVecs;
constexpr int kBlockRows = 48;
/// Panels that use the same widened inputs.
constexpr int kBlockPanels = 2 * kTileVecs;
constexpr int kBlockOutputs = kBlockPanels * kPanelOutputs;

/// What a thread widens into and adds up in, on its stack. runtime/base/process_limit.h says how
/// large a stack is at least.
struct Scratch {
  alignas(64) float weights[kChunkColumns][kTileOutputs];
  alignas(64) float inputs[kBlockRows][kChunkColumns];
  alignas(64) float sums[kMaxFoldDepth][kBlockRows][kBlockOutputs];
};
static_assert(sizeof(Scratch) <= 512 * 1024);

/// At most kBlockRows rows x kBlockPanels panels.
struct Block {
  const MatmulArgs& args;
  int64_t row;
  int rows;
  int panel, panels;
};

/// Columns of a leaf, and what becomes of their sums: `merges` and `contribution` are those of the
/// leaf (LeafStep) in its last chunk; any other chunk leaves its sums on the stack for the next.
struct Chunk {
  int columns;
  bool first;  ///< of its leaf
  int top;     ///< the stack's depth at the leaf's begin
  int merges;
  int contribution;
};

/// Widens the chunk's inputs, which begin at column `begin`.
template <typename Product>
void widen_inputs(const Block& block, int64_t begin, const Chunk& chunk, Scratch& scratch) {
  const auto* x = static_cast<const typename Product::Input*>(block.args.x) + begin;
  for (int r = 0; r < block.rows; ++r) {
    const auto* row = x + (block.row + r) * block.args.x_stride;
    for_lanes(chunk.columns,
              [&](int64_t i, int lanes) { store(scratch.inputs[r] + i, load(row + i, lanes)); });
  }
}

/// Widens the chunk's weights of one tile. Its first group is at w.
template <typename Product>
void widen_weights(const std::byte* w, const Chunk& chunk, Scratch& scratch) {
  for (int k = 0; k < chunk.columns; k += Product::kStep, w += kStepBytes) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVecs; ++v) {
      const typename Product::Weights weights = Product::weights(w + v * kGroupBytes);
#pragma GCC unroll 2
      for (int i = 0; i < Product::kStep; ++i)
        store(scratch.weights[k + i] + v * kLanes, Product::of_step(weights, i));
    }
  }
}

/// Adds the chunk's products to the sums of a tile: of each step the last k first, as add_to does.
template <int Step, int Rows>
[[gnu::always_inline]] inline void add_products(const Scratch& scratch, int row, int columns,
                                                Vec (&sums)[Rows][kTileVecs]) {
  const float* x = scratch.inputs[row];
  for (int k = 0; k < columns; k += Step) {
#pragma GCC unroll 2
    for (int i = k + Step - 1; i >= k; --i) {
      Vec weights[kTileVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kTileVecs; ++v) weights[v] = load(scratch.weights[i] + v * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const Vec input = set1(x[r * kChunkColumns + i]);
#pragma GCC unroll 2
        for (int v = 0; v < kTileVecs; ++v) sums[r][v] = fma(input, weights[v], sums[r][v]);
      }
    }
  }
}

/// Folds a tile's sums as the chunk says, and stores them on the stack or as results. The tile
/// begins at `row` and `output` of the block.
template <int Rows>
[[gnu::always_inline]] inline void fold(const Block& block, const Chunk& chunk, int row, int output,
                                        Scratch& scratch, Vec (&sums)[Rows][kTileVecs]) {
  int top = chunk.top;
  for (int merge = 0; merge < chunk.merges; ++merge) {
    --top;
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kTileVecs; ++v) {
        sums[r][v] = add(load(scratch.sums[top][row + r] + output + v * kLanes), sums[r][v]);
      }
    }
  }
  const bool whole = chunk.contribution >= 0;
  const MatmulArgs& args = block.args;
  const int column = block.panel * kPanelOutputs;
  float* to = scratch.sums[top][0] + output;
  if (whole) {
    to = args.y + chunk.contribution * args.plane_stride + block.row * args.y_stride + column +
         output;
  }
  const int64_t stride = whole ? args.y_stride : kBlockOutputs;
  const int outputs = whole ? args.w->n() - column - output : kTileOutputs;
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVecs; ++v) {
      const int left = outputs - v * kLanes;
      if (left > 0)
        store(to + (row + r) * stride + v * kLanes, sums[r][v], left < kLanes ? left : kLanes);
    }
  }
}

/// Computes a chunk of one tile.
template <int Step, int Rows>
void tile(const Block& block, const Chunk& chunk, int row, int output, Scratch& scratch) {
  Vec sums[Rows][kTileVecs];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVecs; ++v) {
      sums[r][v] =
          chunk.first ? zero() : load(scratch.sums[chunk.top][row + r] + output + v * kLanes);
    }
  }
  add_products<Step, Rows>(scratch, row, chunk.columns, sums);
  fold<Rows>(block, chunk, row, output, scratch, sums);
}

/// The same for a tile of `rows` rows, of which it takes Rows at most.
template <int Step, int Rows>
void tile_of(int rows, const Block& block, const Chunk& chunk, int row, int output,
             Scratch& scratch) {
  if (rows >= Rows) return tile<Step, Rows>(block, chunk, row, output, scratch);
  if constexpr (Rows > 1) tile_of<Step, Rows - 1>(rows, block, chunk, row, output, scratch);
}

/// Computes a chunk of a block's tiles in one of its panels, whose weights are at w.
template <typename Product>
void panel_chunk(const Block& block, const Chunk& chunk, int panel, const std::byte* w,
                 Scratch& scratch) {
  const int outputs = block.args.w->n() - (block.panel + panel) * kPanelOutputs;
  for (int vec = 0; vec < kPanelVecs && vec * kLanes < outputs; vec += kTileVecs) {
    widen_weights<Product>(w + vec * kGroupBytes, chunk, scratch);
    for (int row = 0; row < block.rows; row += kTileRows) {
      tile_of<Product::kStep, kTileRows>(block.rows - row, block, chunk, row,
                                         panel * kPanelOutputs + vec * kLanes, scratch);
    }
  }
}

/// Computes a block, leaf by leaf and chunk by chunk.
template <typename Product>
void compute(const Block& block, Scratch& scratch) {
  const PackedMatrix& w = *block.args.w;
  int64_t at = 0;  // of the chunk's weights in their panel
  int top = 0;
  for (const LeafStep *leaf = w.leaves().data(), *end = leaf + w.leaves().size(); leaf != end;
       ++leaf) {
    // An odd last column is stored as a pair, and so are its inputs.
    const int columns =
        (leaf->k_end - leaf->k_begin + Product::kStep - 1) / Product::kStep * Product::kStep;
    for (int k = 0; k < columns; k += kChunkColumns) {
      const bool last = columns - k <= kChunkColumns;
      const Chunk chunk{last ? columns - k : kChunkColumns, k == 0, top, last ? leaf->merges : 0,
                        last ? leaf->contribution : -1};
      widen_inputs<Product>(block, leaf->k_begin + k, chunk, scratch);
      for (int panel = 0; panel < block.panels; ++panel)
        panel_chunk<Product>(block, chunk, panel, w.panel(block.panel + panel) + at, scratch);
      at += chunk.columns / Product::kStep * kStepBytes;
    }
    top = leaf->contribution < 0 ? top + 1 - leaf->merges : 0;
  }
}

/// Computes the rows [row_begin, row_end) of the panels [panel_begin, panel_end). Not inlined,
/// because a product of few rows must not take the stack of this.
template <typename Product>
[[gnu::noinline]] void many_rows(const MatmulArgs& args, int64_t row_begin, int64_t row_end,
                                 int panel_begin, int panel_end) {
  const auto part = [](int64_t left, int most) {
    return left < most ? static_cast<int>(left) : most;
  };
  Scratch scratch;
  for (int panel = panel_begin; panel < panel_end; panel += kBlockPanels) {
    for (int64_t row = row_begin; row < row_end; row += kBlockRows) {
      compute<Product>({args, row, part(row_end - row, kBlockRows), panel,
                        part(panel_end - panel, kBlockPanels)},
                       scratch);
    }
  }
}

}  // namespace
}  // namespace shoal::SHOAL_ISA
