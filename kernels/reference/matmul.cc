#include <cmath>

#include "kernels/reference/load.h"
#include "kernels/reference/ops.h"

namespace shoal::reference {
namespace {

/// Returns W[output of the panel, k] from the layout that packed_matrix.h describes.
float weight(const PackedMatrix& w, int panel, int output, int k) {
  const int64_t index = w.dtype() == Dtype::kF32
                            ? int64_t{k} * kPanelOutputs + output
                            : (int64_t{k / 2} * kPanelOutputs + output) * 2 + k % 2;
  return load(w.panel(panel), w.dtype(), index);
}

}  // namespace

void matmul(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel_begin,
            int panel_end) {
  const PackedMatrix& w = *args.w;
  const Dtype x_dtype = activation_dtype(w.dtype());
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int n = panel_begin * kPanelOutputs; n < w.n() && n < panel_end * kPanelOutputs; ++n) {
      float stack[kMaxFoldDepth];
      int top = 0;
      for (const LeafStep& leaf : w.leaves()) {
        float sum = 0;
        for (int k = leaf.k_begin; k < leaf.k_end; ++k) {
          sum = std::fma(load(args.x, x_dtype, row * args.x_stride + k),
                         weight(w, n / kPanelOutputs, n % kPanelOutputs, k), sum);
        }
        stack[top++] = sum;
        for (int i = 0; i < leaf.merges; ++i, --top) stack[top - 2] += stack[top - 1];
        if (leaf.contribution >= 0)
          args.y[leaf.contribution * args.plane_stride + row * args.y_stride + n] = stack[--top];
      }
    }
  }
}

}  // namespace shoal::reference
