#pragma once
#include "models/layers.h"

namespace shoal {

/// One rank's forward pass over its shard: runs the rows of the batch through every one of the
/// model's layers, and then computes the logits that the batch asks for. It is the same walk on
/// every kind of device. Returns the errors of the layers; after one the rank must end.
Status forward(Layers& layers, int layer_count, const DecoderBatch& batch, const StepLogits& out);

}  // namespace shoal
