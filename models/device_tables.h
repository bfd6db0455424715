#pragma once
#include <cstdint>
#include <string>

#include "models/model_config.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/device.h"

namespace shoal {

// What the ops of a model read in every step and nothing changes. Each function returns once the
// device has it. Errors: those of Device.

/// Fills cos and sin, [positions][head_dim / 2] of device memory each. They are computed on the
/// host, so that a device has the bits of the CPU.
Status fill_rotary_tables(Device& device, const ModelConfig& config, ThreadPool& pool,
                          int positions, float* cos, float* sin);

/// Fills marks with 0, 1, ..., count - 1. A stream that copies one of them to the host shows how
/// far it has come.
Status fill_progress_marks(Device& device, int count, uint32_t* marks);

/// What follows a step's mark, for people: "layer 5, mlp". Mark 0 is that of the embeddings, then
/// each layer has one for attention and one for its mlp, and the last is that of the logits. A step
/// begins with the last mark of the step before.
std::string part_after(uint32_t mark, int layers);

}  // namespace shoal
