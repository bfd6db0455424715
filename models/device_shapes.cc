#include "models/device_shapes.h"

#include <algorithm>

namespace shoal {

ShoalProduct product_args(const DeviceMatrix& matrix, Dtype weights, const DeviceBuffers& buffers,
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
  args.scratch = buffers.scratch;
  args.scratch_floats = buffers.scratch_floats;
  return args;
}

Status enqueue_product_shapes(const Device& device, const ShoalProduct& args, void* stream) {
  const ShoalCudaModule& module = device.module();
  for (int32_t shape = 0; shape < module.product_shapes(); ++shape) {
    SHOAL_RETURN_IF_ERROR(
        device.check(module.product_with(&args, shape, stream), "a product's first launch"));
  }
  return {};
}

Status enqueue_attention_ways(const Device& device, const ShoalAttention& args, void* stream) {
  const ShoalCudaModule& module = device.module();
  ShoalAttention one_chunk = args;
  one_chunk.split_chunks = 1;  // which the ways that do not split ignore
  for (int32_t way = 0; way < module.attention_ways(); ++way) {
    SHOAL_RETURN_IF_ERROR(
        device.check(module.attention_with(&one_chunk, way, stream), "attention's first launch"));
  }
  return {};
}

}  // namespace shoal
