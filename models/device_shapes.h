#pragma once
#include <cstdint>
#include <span>

#include "models/device_buffers.h"
#include "models/device_weights.h"
#include "runtime/device/device.h"

namespace shoal {

// Two things happen to kernels before a rank is ready, and neither replaces the other:
//
// - When the rank opens its device, Device::open() loads all kernels of the module, before it is
//   known which model they will serve (ShoalCudaModule::load_kernels). The self-test needs that: a
//   launch that has to load its kernel may wait until the device is idle, and a peer's kernel on
//   that device may wait for this very launch. The driver compiles virtual code there, and a module
//   without code for the device is refused there. This launches nothing.
// - At the end of the warm-up, Layers::launch_shapes() launches once each kernel that the model's
//   steps may use, the library's too, which cannot be loaded in another way. Then all that CUDA
//   takes at a first launch has been taken when the rank asks how much memory is left for the KV
//   cache, and no request waits for a first launch.
//
// These functions do the latter for ops that choose between kernels by what a step is. The others
// always take the same kernel for a model, which the warm-up's step of one token has launched.

/// Enqueues the product in every shape. y and scratch are written. Errors: those of Device.
Status enqueue_product_shapes(const Device& device, const ShoalProduct& args, void* stream);

/// Enqueues attention in every way. out is written, and scratch, which has room for one chunk of
/// the rows. Errors: those of Device.
Status enqueue_attention_ways(const Device& device, const ShoalAttention& args,
                              std::span<float> scratch, void* stream);

/// Enqueues add_norm for sums that are folded already, as in steps of many rows. args: of one leaf.
/// out and residual are written. Errors: those of Device.
Status enqueue_folded_norm(const Device& device, const ShoalAddNorm& args, int32_t rows,
                           void* stream);

}  // namespace shoal
