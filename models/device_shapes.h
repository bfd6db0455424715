#pragma once
#include <cstdint>

#include "models/device_buffers.h"
#include "models/device_weights.h"
#include "runtime/device/device.h"

namespace shoal {

// CUDA loads a kernel when it is first launched, which takes time and memory, and may wait for
// whatever runs on the device. These functions launch what an op may choose from, so that no step
// of a request is the first.

/// Enqueues the product in every shape. y and scratch are written. Errors: those of Device.
Status enqueue_product_shapes(const Device& device, const ShoalProduct& args, void* stream);

/// Enqueues attention in every way. out is written, and scratch if it has room for one chunk of the
/// rows. Errors: those of Device.
Status enqueue_attention_ways(const Device& device, const ShoalAttention& args, void* stream);

}  // namespace shoal
