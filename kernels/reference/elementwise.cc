#include "kernels/reference/exp.h"
#include "kernels/reference/lane_sums.h"
#include "kernels/reference/load.h"
#include "kernels/reference/ops.h"

namespace shoal::reference {

void embed(const EmbedArgs& args, int64_t token_begin, int64_t token_end) {
  for (int64_t t = token_begin; t < token_end; ++t) {
    for (int64_t i = 0; i < args.hidden; ++i) {
      args.out[t * args.hidden + i] =
          load(args.table, args.dtype, int64_t{args.ids[t]} * args.hidden + i);
    }
  }
}

void rms_norm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.cols;
    const float scale = inverse_rms(x, args.cols, args.eps);
    for (int i = 0; i < args.cols; ++i) {
      store(x[i] * scale * args.weight[i], args.out, args.out_dtype, row * args.out_stride + i);
    }
    for (int64_t i = args.cols; i < args.out_stride; ++i)
      store(0, args.out, args.out_dtype, row * args.out_stride + i);
  }
}

void residual_add(const ResidualAddArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t i = 0; i < args.cols; ++i) {
      const int64_t at = row * args.cols + i;
      args.residual[at] += args.bias == nullptr ? args.sum[at] : args.sum[at] + args.bias[i];
    }
  }
}

void silu_mul(const SiluMulArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* gate = args.gate_up + row * 2 * args.cols;
    const float* up = gate + args.cols;
    for (int i = 0; i < args.cols; ++i) {
      const float g = args.bias == nullptr ? gate[i] : gate[i] + args.bias[i];
      const float u = args.bias == nullptr ? up[i] : up[i] + args.bias[args.cols + i];
      store(g / (1.0f + exp(-g)) * u, args.out, args.out_dtype, row * args.out_stride + i);
    }
    for (int64_t i = args.cols; i < args.out_stride; ++i)
      store(0, args.out, args.out_dtype, row * args.out_stride + i);
  }
}

void add(float* acc, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) acc[i] += b[i];
}

}  // namespace shoal::reference
