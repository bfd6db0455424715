#include <cmath>

#include "kernels/reference/load.h"
#include "kernels/reference/ops.h"

namespace shoal::reference {
namespace {

/// Returns W[output, k] of a panel, from the layout that packed_matrix.h describes.
float weight(const std::byte* panel, Dtype dtype, int output, int k) {
  const int64_t index = dtype == Dtype::kF32
                            ? int64_t{k} * kPanelOutputs + output
                            : (int64_t{k / 2} * kPanelOutputs + output) * 2 + k % 2;
  return load(panel, dtype, index);
}

/// One chain of products per output. Two-byte weights come in pairs, of which the odd element is
/// added first, because x86's dot-product instruction for bf16 does so. Behind a last even element
/// there is padding, whose weight is zero.
float leaf_sum(const MatmulArgs& args, int64_t row, int n, const LeafStep& leaf) {
  const Dtype w_dtype = args.w->dtype(), x_dtype = activation_dtype(w_dtype);
  const std::byte* const panel = args.w->panel(n / kPanelOutputs);
  const int output = n % kPanelOutputs;
  float sum = 0;
  const auto add = [&](int k) {
    sum = std::fma(load(args.x, x_dtype, row * args.x_stride + k),
                   weight(panel, w_dtype, output, k), sum);
  };
  const bool pairs = w_dtype != Dtype::kF32;
  for (int k = leaf.k_begin; k < leaf.k_end; k += pairs ? 2 : 1) {
    if (pairs) add(k + 1);
    add(k);
  }
  return sum;
}

}  // namespace

void matmul(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel_begin,
            int panel_end) {
  const PackedMatrix& w = *args.w;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int n = panel_begin * kPanelOutputs; n < w.n() && n < panel_end * kPanelOutputs; ++n) {
      float stack[kMaxFoldDepth];
      int top = 0;
      for (const LeafStep& leaf : w.leaves()) {
        stack[top++] = leaf_sum(args, row, n, leaf);
        for (int i = 0; i < leaf.merges; ++i, --top) stack[top - 2] += stack[top - 1];
        if (leaf.contribution >= 0)
          args.y[leaf.contribution * args.plane_stride + row * args.y_stride + n] = stack[--top];
      }
    }
  }
}

}  // namespace shoal::reference
