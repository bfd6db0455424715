#pragma once
#include <span>
#include <vector>

#include "models/model_config.h"

namespace shoal {

/// Returns the head_dim / 2 inverse frequencies in radians per position. *attention_factor becomes
/// the factor of all cosines and sines. The arithmetic repeats torch's operations one by one in
/// float32, so the values equal those of transformers except for the rounding of its powf.
/// Preconditions: a parsed config, an even head_dim. Source: transformers, modeling_rope_utils.py.
std::vector<float> rope_inv_freq(const RopeConfig& rope, int head_dim, int max_position_embeddings,
                                 float* attention_factor);

/// Writes cos and sin (inv_freq.size() values each) of one position. The angle is a float32
/// product, as in transformers. Its cosine and sine are computed in double and rounded once, so
/// that they do not depend on the vector width.
void rope_angles(std::span<const float> inv_freq, float attention_factor, int position, float* cos,
                 float* sin);

}  // namespace shoal
