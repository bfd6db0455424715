#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/config_reader.h"
#include "runtime/base/ieee_math.h"

namespace shoal {
namespace {

/// base ** (2i / head_dim), that is, the wavelengths divided by 2 pi. The power is computed in
/// double and rounded, so it is within one unit in the last place of torch's vectorised powf.
std::vector<float> powers(double theta, int head_dim) {
  std::vector<float> values(static_cast<size_t>(head_dim) / 2);
  const float base = static_cast<float>(theta);
  for (size_t i = 0; i < values.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    values[i] =
        static_cast<float>(ieee::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  return values;
}

// torch computes scalar / tensor as reciprocal(tensor) * scalar: two roundings, not one.
float over(double scalar, float value) {
  return (1.0f / value) * static_cast<float>(scalar);
}

void scale_llama3(const RopeConfig& rope, int original_max, std::vector<float>& inv_freq) {
  const float factor = static_cast<float>(rope.factor);
  const float low_wavelen = static_cast<float>(original_max / rope.low_freq_factor);
  const float high_wavelen = static_cast<float>(original_max / rope.high_freq_factor);
  for (float& freq : inv_freq) {
    const float wavelen = over(2 * std::numbers::pi, freq);
    if (wavelen > low_wavelen) {
      freq = freq / factor;
    } else if (!(wavelen < high_wavelen)) {
      const float smooth =
          (over(original_max, wavelen) - static_cast<float>(rope.low_freq_factor)) /
          static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      freq = (1 - smooth) * freq / factor + smooth * freq;
    }
  }
}

/// The (fractional) dimension that makes `rotations` full turns over the original context.
double correction_dim(double rotations, int head_dim, double theta, int original_max) {
  return head_dim * ieee::log(original_max / (rotations * 2 * std::numbers::pi)) /
         (2 * ieee::log(theta));
}

void scale_yarn(const RopeConfig& rope, int head_dim, int original_max,
                std::vector<float>& inv_freq) {
  double low = correction_dim(rope.beta_fast, head_dim, rope.theta, original_max);
  double high = correction_dim(rope.beta_slow, head_dim, rope.theta, original_max);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;  // as in transformers, against a division by zero
  const std::vector<float> power = powers(rope.theta, head_dim);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float extrapolated = 1 - std::clamp(ramp, 0.0f, 1.0f);
    const float interpolation = 1.0f / (static_cast<float>(rope.factor) * power[i]);
    inv_freq[i] = interpolation * (1 - extrapolated) + inv_freq[i] * extrapolated;
  }
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * ieee::log(factor) + 1.0;
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0) {
    return yarn_mscale(rope.factor, *rope.mscale) / yarn_mscale(rope.factor, *rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1);
}

}  // namespace

std::vector<float> rope_inv_freq(const RopeConfig& rope, int head_dim, int max_position_embeddings,
                                 float* attention_factor) {
  *attention_factor = 1;
  std::vector<float> inv_freq = powers(rope.theta, head_dim);
  for (float& value : inv_freq) value = 1.0f / value;
  const int original_max = rope.original_max_position_embeddings > 0
                               ? rope.original_max_position_embeddings
                               : max_position_embeddings;
  switch (rope.type) {
    case RopeConfig::Type::kDefault:
      break;
    case RopeConfig::Type::kLinear:
      for (float& value : inv_freq) value /= static_cast<float>(rope.factor);
      break;
    case RopeConfig::Type::kLlama3:
      scale_llama3(rope, original_max, inv_freq);
      break;
    case RopeConfig::Type::kYarn:
      scale_yarn(rope, head_dim, original_max, inv_freq);
      *attention_factor = static_cast<float>(yarn_attention_factor(rope));
      break;
  }
  return inv_freq;
}

int stretched_positions(const RopeConfig& rope, int max_position_embeddings) {
  double length = 0;
  if (rope.type == RopeConfig::Type::kYarn) {
    length = rope.factor * rope.original_max_position_embeddings;
  } else if (rope.type == RopeConfig::Type::kLinear) {
    length = rope.factor * max_position_embeddings;
  }
  // A factor such as 1.15 is not exact in binary, and its product must not lose a whole position.
  length = std::min(std::floor(length + 1e-6), static_cast<double>(kMaxPositions));
  // A factor below 1, or a config whose max_position_embeddings is the stretched length.
  return std::max(static_cast<int>(length), max_position_embeddings);
}

void rope_angles(std::span<const float> inv_freq, float attention_factor, int position, float* cos,
                 float* sin) {
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double angle = static_cast<float>(position) * inv_freq[i];
    cos[i] = static_cast<float>(ieee::cos(angle)) * attention_factor;
    sin[i] = static_cast<float>(ieee::sin(angle)) * attention_factor;
  }
}

}  // namespace shoal
