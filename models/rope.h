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

/// The number of positions that the model can use, which rope scaling may stretch beyond
/// max_position_embeddings: yarn to factor x original_max_position_embeddings, linear to factor x
/// max_position_embeddings. In a llama3 config max_position_embeddings is the stretched length
/// already. At most kMaxPositions (config_reader.h), so that the bytes of a KV cache stay below
/// 2^63.
int stretched_positions(const RopeConfig& rope, int max_position_embeddings);

/// Writes cos and sin (inv_freq.size() values each) of one position. The angle is a float32
/// product, as in transformers. Its cosine and sine are computed in double
/// (runtime/base/ieee_math.h) and rounded once, so that they do not depend on the machine; YaRN's
/// attention_factor then multiplies them in float32, as in transformers.
void rope_angles(std::span<const float> inv_freq, float attention_factor, int position, float* cos,
                 float* sin);

}  // namespace shoal
