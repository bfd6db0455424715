#include "kernels/cpu/norm.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

namespace shoal::SHOAL_ISA {

void embed(const EmbedArgs& args, int64_t token_begin, int64_t token_end) {
  as_elements(args.table, args.dtype, [&](const auto* table) {
    for (int64_t t = token_begin; t < token_end; ++t) {
      const auto* row = table + int64_t{args.ids[t]} * args.hidden;
      float* out = args.out + t * args.hidden;
      for_lanes(args.hidden,
                [&](int64_t i, int lanes) { store(out + i, load(row + i, lanes), lanes); });
    }
  });
}

void rms_norm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  as_elements(args.out, args.out_dtype, [&](auto* all) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      const float* x = args.x + row * args.cols;
      const Vec scale = set1(inverse_rms(x, args.cols, args.eps));
      auto* out = all + row * args.out_stride;
      for_lanes(args.cols, [&](int64_t i, int lanes) {
        store(out + i, mul(mul(load(x + i, lanes), scale), load(args.weight + i, lanes)), lanes);
      });
      for_lanes(args.out_stride - args.cols,
                [&](int64_t i, int lanes) { store(out + args.cols + i, zero(), lanes); });
    }
  });
}

void residual_add(const ResidualAddArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* residual = args.residual + row * args.cols;
    const float* sum = args.sum + row * args.cols;
    for_lanes(args.cols, [&](int64_t i, int lanes) {
      Vec x = load(sum + i, lanes);
      if (args.bias != nullptr) x = add(x, load(args.bias + i, lanes));
      store(residual + i, add(load(residual + i, lanes), x), lanes);
    });
  }
}

void silu_mul(const SiluMulArgs& args, int64_t row_begin, int64_t row_end) {
  as_elements(args.out, args.out_dtype, [&](auto* all) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      const float* gate = args.gate_up + row * 2 * args.cols;
      const float* up = gate + args.cols;
      auto* out = all + row * args.out_stride;
      for_lanes(args.cols, [&](int64_t i, int lanes) {
        Vec g = load(gate + i, lanes), u = load(up + i, lanes);
        if (args.bias != nullptr) {
          g = add(g, load(args.bias + i, lanes));
          u = add(u, load(args.bias + args.cols + i, lanes));
        }
        const Vec silu = div(g, add(set1(1.0f), exp(sub(zero(), g))));
        store(out + i, mul(silu, u), lanes);
      });
      for_lanes(args.out_stride - args.cols,
                [&](int64_t i, int lanes) { store(out + args.cols + i, zero(), lanes); });
    }
  });
}

void add(float* acc, const float* b, int64_t count) {
  for_lanes(count, [&](int64_t i, int lanes) {
    store(acc + i, add(load(acc + i, lanes), load(b + i, lanes)), lanes);
  });
}

}  // namespace shoal::SHOAL_ISA
