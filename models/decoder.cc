#include "models/decoder.h"

namespace shoal {

Status forward(Layers& layers, int layer_count, const DecoderBatch& batch, const StepLogits& out) {
  SHOAL_RETURN_IF_ERROR(layers.begin(batch));
  for (int layer = 0; layer < layer_count; ++layer) {
    SHOAL_RETURN_IF_ERROR(layers.attention(layer));
    SHOAL_RETURN_IF_ERROR(layers.reduce(layer, Layers::Part::kAttention));
    SHOAL_RETURN_IF_ERROR(layers.mlp(layer));
    SHOAL_RETURN_IF_ERROR(layers.reduce(layer, Layers::Part::kMlp));
  }
  SHOAL_RETURN_IF_ERROR(layers.logits(out));
  return layers.finish();
}

}  // namespace shoal
