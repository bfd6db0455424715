#pragma once
#include "runtime/base/dtype.h"
#include "tests/emulator/tensor_core.h"

namespace shoal::gpu {

/// To nearest, and from the middle away from zero.
float rounded_to_tf32(float value);

/// The chain of products and sums that a device computes for weights, or a cache, of this type, by
/// a plain loop from zero: a[0] * b[0] + a[1] * b[1] + ... Factors are rounded to what the device
/// multiplies.
float chain_sum(const emulator::TensorCore& core, Dtype type, const float* a, const float* b,
                int count);

}  // namespace shoal::gpu
