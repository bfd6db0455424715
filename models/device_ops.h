#pragma once
#include <cstdint>
#include <span>

#include "models/device_buffers.h"
#include "models/device_weights.h"
#include "models/layers.h"
#include "models/model_config.h"
#include "runtime/device/cuda_ops.h"

namespace shoal {

// The arguments of a layer's larger ops, from a rank's weights and the buffers of a step.

/// The rows of the embedding table for the tokens of a step.
ShoalEmbed embed_args(const DeviceWeights& weights, const ModelConfig& config,
                      const DeviceBuffers& buffers, int32_t rows);

/// The product of `rows` rows of x, which are x_stride elements apart, with a matrix of the
/// weights. y: [contributions][rows][outputs]; nullptr: the leaves' sums stay in scratch, unfolded.
ShoalProduct product_args(const DeviceMatrix& matrix, Dtype weights, std::span<float> scratch,
                          const void* x, int64_t x_stride, int32_t rows, float* y);

/// q, k and v of a layer. The step, the cache, the heads and the positions are left to the caller.
ShoalQkv qkv_args(const DeviceWeights::Layer& weights, const ModelConfig& config,
                  const DeviceBuffers& buffers);

/// The gated activation of a layer, whose MLP has this many columns on the rank.
ShoalSiluMul silu_mul_args(const DeviceWeights::Layer& weights, Dtype activations,
                           const DeviceBuffers& buffers, int32_t columns, int32_t rows);

/// What follows a part of a layer: its sum is added to the rows, and then they are normalized for
/// the next part. After the last layer they are not, because only some rows have logits. The sum is
/// what the product has left: if `unfolded`, its leaves' sums in scratch. `mark` is set, `progress`
/// is not.
ShoalAddNorm add_norm_args(const DeviceWeights& weights, const ModelConfig& config,
                           const DeviceBuffers& buffers, int layer, Layers::Part part,
                           bool unfolded);

}  // namespace shoal
