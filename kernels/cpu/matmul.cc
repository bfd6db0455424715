#include "kernels/cpu/many_rows.h"
#include "kernels/cpu/ops.h"

// Outputs are in lanes and k runs in order, so every output of every row is its own chain. Rows,
// panels and threads can therefore be cut anywhere. A block is Rows rows x Vecs vectors of outputs,
// kept in registers during a leaf.

namespace shoal::SHOAL_ISA {
namespace {

/// How many bytes before its use a weight is prefetched into the second-level cache: one page,
/// because the processor's own prefetching stops there. A shorter distance, or prefetching into the
/// first level, cost 5 % of decode's bandwidth on Zen 4.
constexpr int64_t kPrefetchBytes = 4096;

/// How many vectors of outputs a block of two rows has, and one of more. AVX2 has 16 registers, of
/// which 4 rows x 2 registers of sums leave room for a pair of weights and a pair of inputs, and 6
/// rows for those of float32. NEON's 32 are half as wide.
#if defined(__AVX512F__)
constexpr int kTwoRowVecs = kPanelVecs, kBlockVecs = kPanelVecs;
#else
constexpr int kTwoRowVecs = 2, kBlockVecs = 1;
#endif

/// Loads the weights of a step's vector, and has those of another step fetched.
template <typename Product>
inline typename Product::Weights stream(const std::byte* group) {
  __builtin_prefetch(group + kPrefetchBytes, /*rw=*/0, /*locality=*/2);
  return Product::weights(group);
}

/// Adds one step to the sums. `w` points to its weights and `x` to its inputs, rows x_stride apart.
template <typename Product, int Rows, int Vecs>
inline void add_step(const std::byte* w, const typename Product::Input* x, int64_t x_stride,
                     Vec (&sums)[Rows][Vecs]) {
  if constexpr (Rows <= 2) {
    // One vector after the other, because AVX2 has no registers for the weights of all.
    typename Product::Inputs inputs[Rows];
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) inputs[r] = Product::inputs(x + r * x_stride);
#pragma GCC unroll 4
    for (int v = 0; v < Vecs; ++v) {
      const typename Product::Weights weights = stream<Product>(w + v * kGroupBytes);
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) sums[r][v] = Product::add_to(sums[r][v], weights, inputs[r]);
    }
  } else {
    typename Product::Weights weights[Vecs];
#pragma GCC unroll 4
    for (int v = 0; v < Vecs; ++v) weights[v] = stream<Product>(w + v * kGroupBytes);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const typename Product::Inputs inputs = Product::inputs(x + r * x_stride);
#pragma GCC unroll 4
      for (int v = 0; v < Vecs; ++v) sums[r][v] = Product::add_to(sums[r][v], weights[v], inputs);
    }
  }
}

/// Computes the sums of one leaf. `w` points to its steps of weights, one after the other.
template <typename Product, int Rows, int Vecs>
inline void leaf_sums(const std::byte* w, const typename Product::Input* x, int64_t x_stride,
                      int64_t steps, Vec (&sums)[Rows][Vecs]) {
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vecs; ++v) sums[r][v] = zero();
  }
  for (int64_t step = 0; step < steps; ++step, w += kStepBytes, x += Product::kStep)
    add_step<Product>(w, x, x_stride, sums);
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vecs; ++v) sums[r][v] = Product::in_order(sums[r][v]);
  }
}

/// Computes Rows rows x Vecs vectors of a panel's outputs: the leaves in order, folded on a stack.
template <typename Product, int Rows, int Vecs>
void block(const MatmulArgs& args, int64_t row, int panel, int vec) {
  const PackedMatrix& w = *args.w;
  const LeafStep* leaf = w.leaves().data();
  const LeafStep* const leaves_end = leaf + w.leaves().size();
  const std::byte* weights = w.panel(panel) + vec * kGroupBytes;
  const auto* x = static_cast<const typename Product::Input*>(args.x) + row * args.x_stride;
  const int column = panel * kPanelOutputs + vec * kLanes;
  alignas(64) float stack[kMaxFoldDepth][Rows][Vecs][kLanes];
  int top = 0;
  for (; leaf != leaves_end; ++leaf) {
    const int64_t steps = (leaf->k_end - leaf->k_begin + Product::kStep - 1) / Product::kStep;
    Vec sums[Rows][Vecs];
    leaf_sums<Product, Rows, Vecs>(weights, x + leaf->k_begin, args.x_stride, steps, sums);
    weights += steps * kStepBytes;
    for (int merge = 0; merge < leaf->merges; ++merge) {
      --top;
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v) sums[r][v] = add(load(stack[top][r][v]), sums[r][v]);
      }
    }
    if (leaf->contribution < 0) {
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v) store(stack[top][r][v], sums[r][v]);
      }
      ++top;
      continue;
    }
    float* y = args.y + leaf->contribution * args.plane_stride + row * args.y_stride + column;
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vecs; ++v) {
        const int left = w.n() - column - v * kLanes;
        if (left > 0)
          store(y + r * args.y_stride + v * kLanes, sums[r][v], left < kLanes ? left : kLanes);
      }
    }
  }
}

/// Computes `rows` rows, at most Rows, of a panel's vector.
template <typename Product, int Rows>
void few_rows(const MatmulArgs& args, int64_t row, int64_t rows, int panel, int vec) {
  if (rows == Rows) return block<Product, Rows, kBlockVecs>(args, row, panel, vec);
  if constexpr (Rows > 1) few_rows<Product, Rows - 1>(args, row, rows, panel, vec);
}

/// Computes the rows [row_begin, row_end) of one panel while it is in the cache.
template <typename Product>
void panel_rows(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel) {
  constexpr int kRows = Product::kRows;
  const int64_t all = row_end - row_begin;
  if (all == 1) return block<Product, 1, kPanelVecs>(args, row_begin, panel, 0);
  const int outputs = args.w->n() - panel * kPanelOutputs;
  const int vecs = outputs < kPanelOutputs ? (outputs + kLanes - 1) / kLanes : kPanelVecs;
  if (all == 2) {
    for (int vec = 0; vec < vecs; vec += kTwoRowVecs)
      block<Product, 2, kTwoRowVecs>(args, row_begin, panel, vec);
    return;
  }
  for (int vec = 0; vec < vecs; vec += kBlockVecs) {
    for (int64_t row = row_begin, rows; row < row_end; row += rows) {
      const int64_t left = row_end - row;
      rows = left <= kRows ? left : left < 2 * kRows ? (left + 1) / 2 : kRows;
      few_rows<Product, kRows>(args, row, rows, panel, vec);
    }
  }
}

template <typename Product>
void multiply(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel_begin,
              int panel_end) {
  if constexpr (Product::kManyRows > 0) {
    if (row_end - row_begin >= Product::kManyRows)
      return many_rows<Product>(args, row_begin, row_end, panel_begin, panel_end);
  }
  for (int panel = panel_begin; panel < panel_end; ++panel)
    panel_rows<Product>(args, row_begin, row_end, panel);
}

}  // namespace

void matmul(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel_begin,
            int panel_end) {
  if (row_begin >= row_end) return;
  switch (args.w->dtype()) {
    case Dtype::kF32:
      return multiply<F32Product>(args, row_begin, row_end, panel_begin, panel_end);
    case Dtype::kF16:
      return multiply<F16Product>(args, row_begin, row_end, panel_begin, panel_end);
    case Dtype::kBf16:
      return multiply<Bf16Product>(args, row_begin, row_end, panel_begin, panel_end);
  }
}

}  // namespace shoal::SHOAL_ISA
