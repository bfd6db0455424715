#include "models/device_shapes.h"

namespace shoal {

Status enqueue_product_shapes(const Device& device, const ShoalProduct& args, void* stream) {
  const ShoalCudaModule& module = device.module();
  for (int32_t shape = 0; shape < module.product_shapes(); ++shape) {
    SHOAL_RETURN_IF_ERROR(
        device.check(module.product_with(&args, shape, stream), "a product's first launch"));
  }
  return {};
}

Status enqueue_attention_ways(const Device& device, const ShoalAttention& args,
                              std::span<float> scratch, void* stream) {
  const ShoalCudaModule& module = device.module();
  ShoalAttention one_chunk = args;
  one_chunk.split_chunks = 1;  // which the ways that do not split ignore
  one_chunk.scratch = scratch.data();
  one_chunk.scratch_floats = static_cast<int64_t>(scratch.size());
  for (int32_t way = 0; way < module.attention_ways(); ++way) {
    SHOAL_RETURN_IF_ERROR(
        device.check(module.attention_with(&one_chunk, way, stream), "attention's first launch"));
  }
  return {};
}

Status enqueue_folded_norm(const Device& device, const ShoalAddNorm& args, int32_t rows,
                           void* stream) {
  ShoalAddNorm of_rows = args;
  of_rows.rows = rows;
  return device.enqueue(device.module().add_norm, of_rows, stream, "add_norm's first launch");
}

}  // namespace shoal
