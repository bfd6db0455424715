#pragma once
#include <cstdint>

#include "models/layers.h"
#include "models/model_config.h"
#include "models/shard_plan.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace shoal {

// What devices can compute, and how much device memory it takes. These functions need no device.

/// What the kernels of devices cannot compute: UNIMPLEMENTED, naming the field of config.json and
/// the limit.
Status check_device_model(const ModelConfig& config);

/// About the bytes that a step takes on a rank's device beside weights of this type.
int64_t device_activation_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype,
                                const StepRoom& room);

}  // namespace shoal
