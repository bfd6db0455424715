#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/shard_plan.h"
#include "models/weights.h"
#include "runtime/base/dtype.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/device.h"

namespace shoal {

/// A weight matrix of a rank in device memory, as ShoalProduct reads it: row-major, each leaf of a
/// row padded with zeros.
struct DeviceMatrix {
  int32_t outputs = 0;
  int32_t leaves = 0;
  ShoalLeaf leaf[kShoalMostLeaves] = {};
  int64_t stride = 0;      ///< elements of a row
  Device::Memory weights;  ///< [outputs][stride]; a part of what holds all weights
};

/// A vector in device memory; empty if the model does not have it.
struct DeviceVector {
  Device::Memory values;
  const float* get() const { return static_cast<const float*>(values.get()); }
};

/// One rank's weights on a device.
struct DeviceWeights : WeightsOf<DeviceMatrix, DeviceVector, Device::Memory> {
  Dtype dtype = Dtype::kBf16;  ///< of matrices and of the embedding table
  int64_t bytes = 0;           ///< of device memory
  uint64_t sum = 0;            ///< WeightSum of all that was copied to the device
};

/// Reads the rank's slices of a checkpoint, converts them to dtype, and copies them to the device
/// through two pinned buffers, so that one is filled while the other is copied. All of them are in
/// one allocation of device_weight_bytes(). The embedding table is copied whole; a tied last
/// product shares it if hidden_size is a multiple of 64. Returns once everything has been copied.
/// The kernels are used for the checksum. Errors: those of Checkpoint::tensor, and
/// RESOURCE_EXHAUSTED with the bytes.
Result<DeviceWeights> load_device_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                          const ShardPlan& plan, Dtype dtype, Device& device,
                                          ThreadPool& pool, const KernelTable& kernels,
                                          const LoadCallback& progress);

/// Counts, without a device and without a checkpoint, the bytes that load_device_weights() takes.
/// INTERNAL: the plan is none of this model.
Result<int64_t> device_weight_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype);

}  // namespace shoal
