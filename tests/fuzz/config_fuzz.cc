// Feeds arbitrary bytes to the readers of a model directory's JSON files. Besides not crashing, the
// readers must refuse every value outside the bounds that the rest of the program relies on.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "models/generation_config.h"
#include "models/model_config.h"
#include "models/rope.h"
#include "models/safetensors.h"
#include "models/safetensors_header.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const shoal::ModelConfig& model) {
  require(model.vocab_size > 0 && model.hidden_size > 0 && model.intermediate_size > 0);
  require(model.num_key_value_heads > 0 &&
          model.num_attention_heads % model.num_key_value_heads == 0);
  require(model.head_dim > 0 && model.head_dim % 2 == 0);
  require(model.sliding_window.size() == static_cast<size_t>(model.num_hidden_layers));
  float factor = 0;
  for (const float freq :
       rope_inv_freq(model.rope, model.head_dim, model.max_position_embeddings, &factor)) {
    require(std::isfinite(freq));
  }
  require(std::isfinite(factor) && factor > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = shoal::parse_model_config(text, "config.json");
  if (model.ok()) check(*model);
  const auto generation = shoal::parse_generation_config(text, "generation_config.json");
  if (generation.ok() && generation->temperature) require(*generation->temperature >= 0);
  const auto index = shoal::parse_safetensors_index(text, "model.safetensors.index.json");
  if (index.ok()) {
    for (const auto& [tensor, file] : *index)
      require(!file.empty() && file.find('/') == std::string::npos);
  }
  return 0;
}
