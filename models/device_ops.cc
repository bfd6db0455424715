#include "models/device_ops.h"

#include <algorithm>

#include "kernels/args.h"
#include "models/device_tables.h"

namespace shoal {

ShoalEmbed embed_args(const DeviceWeights& weights, const ModelConfig& config,
                      const DeviceBuffers& buffers, int32_t rows) {
  return {.type = device_type(weights.dtype),
          .rows = rows,
          .hidden = config.hidden_size,
          .vocabulary = config.vocab_size,
          .table = weights.embedding.get(),
          .ids = buffers.step.token_ids,
          .out = buffers.residual};
}

ShoalProduct product_args(const DeviceMatrix& matrix, Dtype weights, std::span<float> scratch,
                          const void* x, int64_t x_stride, int32_t rows, float* y) {
  ShoalProduct args{};
  args.type = device_type(weights);
  args.outputs = matrix.outputs;
  args.rows = rows;
  args.leaves = matrix.leaves;
  std::copy_n(matrix.leaf, matrix.leaves, args.leaf);
  args.weights = matrix.weights.get();
  args.weight_stride = matrix.stride;
  args.x = x;
  args.x_stride = x_stride;
  args.y = y;
  args.y_stride = matrix.outputs;
  args.plane_stride = int64_t{rows} * matrix.outputs;
  args.scratch = scratch.data();
  args.scratch_floats = static_cast<int64_t>(scratch.size());
  return args;
}

ShoalQkv qkv_args(const DeviceWeights::Layer& weights, const ModelConfig& config,
                  const DeviceBuffers& buffers) {
  ShoalQkv args{};
  args.eps = config.rms_norm_eps;
  args.qkv = buffers.qkv;
  args.qkv_stride = buffers.qkv_columns;
  args.bias = weights.qkv_bias.get();
  args.q_norm = weights.q_norm.get();
  args.k_norm = weights.k_norm.get();
  args.cos = buffers.cos;
  args.sin = buffers.sin;
  args.q = buffers.q;
  args.q_stride = buffers.q_stride;
  return args;
}

ShoalSiluMul silu_mul_args(const DeviceWeights::Layer& weights, Dtype activations,
                           const DeviceBuffers& buffers, int32_t columns, int32_t rows) {
  return {.type = device_type(activations),
          .rows = rows,
          .cols = columns,
          .gate_up = buffers.gate_up,
          .bias = weights.gate_up_bias.get(),
          .out = buffers.mlp,
          .out_stride = buffers.mlp_stride};
}

ShoalAddNorm add_norm_args(const DeviceWeights& weights, const ModelConfig& config,
                           const DeviceBuffers& buffers, int layer, Layers::Part part,
                           bool unfolded) {
  const auto at = static_cast<size_t>(layer);
  const DeviceWeights::Layer& mine = weights.layers[at];
  const bool is_mlp = part == Layers::Part::kMlp;
  ShoalAddNorm args{};
  args.type = device_type(activation_dtype(weights.dtype));
  args.cols = config.hidden_size;
  args.leaves = 1;
  args.sums = buffers.partial;
  if (unfolded) {
    const DeviceMatrix& w = is_mlp ? mine.down : mine.o;
    args.leaves = w.leaves;
    for (int i = 0; i < w.leaves; ++i) args.merges[i] = w.leaf[i].merges;
    args.sums = buffers.scratch;
  }
  args.bias = (is_mlp ? mine.down_bias : mine.o_bias).get();
  args.residual = buffers.residual;
  args.weight = mine.post_attention_norm.get();
  if (is_mlp)
    args.weight =
        at + 1 < weights.layers.size() ? weights.layers[at + 1].input_norm.get() : nullptr;
  args.eps = config.rms_norm_eps;
  args.out = buffers.input;
  args.out_stride = buffers.hidden_stride;
  args.mark = static_cast<uint32_t>(mark_after_sum(2 * layer + (is_mlp ? 1 : 0)));
  return args;
}

}  // namespace shoal
