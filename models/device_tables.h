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

/// Fills marks with 0, 1, ..., count - 1. A stream copies one of these numbers to the host to show
/// how far it has come.
Status fill_progress_marks(Device& device, int count, uint32_t* marks);

// How far a stream is in a step. It begins with mark 0. Each half of a layer (attention, then mlp)
// has two: one when the rank's contributions have been computed, unless it is the only rank, and
// one when those of all ranks have been summed. The last mark follows the logits.
constexpr int mark_before_sum(int half) {
  return 2 * half + 1;
}
constexpr int mark_after_sum(int half) {
  return 2 * half + 2;
}
constexpr int last_mark_of(int layers) {
  return 4 * layers + 1;
}

/// Whether a device with this mark sums, and so may wait for other ranks.
constexpr bool sums_after(uint32_t mark, int layers) {
  return mark % 2 == 1 && static_cast<int>(mark) < last_mark_of(layers);
}
/// What a device with this mark is in, for people: "layer 5, mlp", "the sum of layer 5, mlp".
std::string part_after(uint32_t mark, int layers);

}  // namespace shoal
