#include "models/device_limits.h"

#include "kernels/args.h"
#include "models/device_buffers.h"
#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/device/cuda_ops.h"

namespace shoal {
namespace {

constexpr int kMostNormColumns = 24576;  // ShoalRmsNorm::cols

Status no_such_kernel(const std::string& what) {
  return Status::error(Code::kUnimplemented, cat("--device cuda: ", what, "; use --device cpu"));
}

}  // namespace

Status check_device_model(const ModelConfig& config) {
  if (config.head_dim > kShoalMostHeadDim) {
    return no_such_kernel(
        cat("head_dim ", config.head_dim, " is above ", static_cast<int>(kShoalMostHeadDim)));
  }
  if (config.num_attention_heads > kShoalMostHeads ||
      config.num_key_value_heads > kShoalMostKvHeads) {
    return no_such_kernel(cat(counted(config.num_attention_heads, "head"), " and ",
                              counted(config.num_key_value_heads, "KV head"), " are more than ",
                              static_cast<int>(kShoalMostHeads), " and ",
                              static_cast<int>(kShoalMostKvHeads)));
  }
  if (config.hidden_size > kMostNormColumns) {
    return no_such_kernel(cat("hidden_size ", config.hidden_size, " is above ", kMostNormColumns));
  }
  return {};
}

int64_t device_activation_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype,
                                const StepRoom& room) {
  return DeviceBuffers(nullptr, config, plan, activation_dtype(dtype), room,
                       scratch_floats_of(config, plan, room))
      .bytes;
}

}  // namespace shoal
