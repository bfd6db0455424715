#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "models/model_config.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace shoal {

/// The rotary embedding of a config.json: rope_parameters, or rope_scaling and rope_theta.
/// UNIMPLEMENTED: a type other than default, linear, llama3, yarn, or parameters that differ
/// between layers; INVALID_ARGUMENT: malformed or impossible.
Result<RopeConfig> parse_rope_config(const Json& config, int max_position_embeddings,
                                     std::string_view what);

/// The head_dim / 2 inverse frequencies in radians per position, and what cosines and sines are
/// multiplied by. The arithmetic is torch's, operation by operation in float32, so the values are
/// transformers' own up to its powf. Preconditions: a parsed config, an even head_dim. Source:
/// transformers, modeling_rope_utils.py.
std::vector<float> rope_inv_freq(const RopeConfig& rope, int head_dim, int max_position_embeddings,
                                 float* attention_factor);

/// cos and sin (inv_freq.size() values each) of one position: the angle is a float32 product, as in
/// transformers; its cosine and sine are computed in double and rounded once, so they do not depend
/// on the vector width.
void rope_angles(std::span<const float> inv_freq, float attention_factor, int position, float* cos,
                 float* sin);

}  // namespace shoal
