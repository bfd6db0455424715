#include "models/rope_config.h"

#include "models/config_reader.h"

namespace shoal {
namespace {

/// Merges the parameters into one flat object. As in transformers, a field of rope_scaling
/// overrides the same field of rope_parameters. Unlike there, the other fields of rope_parameters
/// are kept, because files that carry both objects for old and new readers write theta only into
/// the new one.
Json merged_parameters(ConfigReader& config) {
  Json merged = Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    if (!config.object()[key].is_object()) {
      config.invalid(cat('"', key, "\" must be an object"));
      return merged;
    }
    merged.update(config.object()[key]);
  }
  return merged;
}

/// Returns the common parameters if they are nested by layer type ({"full_attention": {...},
/// "sliding_attention": {...}}) and all equal.
Json without_nesting(Json parameters, ConfigReader& config) {
  const Json* first = nullptr;
  for (const auto& [key, value] : parameters.items()) {
    if (!key.ends_with("_attention") || !value.is_object()) continue;
    if (first != nullptr && *first != value) {
      config.unimplemented("rope_parameters that differ between layer types are not supported");
      return Json::object();
    }
    first = &value;
  }
  return first != nullptr ? *first : parameters;
}

RopeConfig::Type read_type(ConfigReader& rope) {
  const std::string new_name = rope.string("rope_type").value_or("");
  const std::string old_name = rope.string("type").value_or("");
  if (!new_name.empty() && !old_name.empty() && new_name != old_name) {
    rope.invalid(
        cat("\"rope_type\" is ", in_quotes(new_name), " and \"type\" is ", in_quotes(old_name)));
  }
  const std::string& name = new_name.empty() ? old_name : new_name;
  if (name.empty() || name == "default") return RopeConfig::Type::kDefault;
  if (name == "linear") return RopeConfig::Type::kLinear;
  if (name == "llama3") return RopeConfig::Type::kLlama3;
  if (name == "yarn") return RopeConfig::Type::kYarn;
  rope.unimplemented(cat("rope type ", in_quotes(name),
                         " is not supported; supported are default, linear, llama3 and yarn"));
  return RopeConfig::Type::kDefault;
}

double required_number(ConfigReader& rope, const char* key, double min, double max) {
  if (!rope.has(key)) rope.invalid(cat("\"", key, "\" is missing; this rope type needs it"));
  return rope.number(key, min, max).value_or(min);
}

void read_llama3(ConfigReader& rope, RopeConfig& result) {
  result.low_freq_factor = required_number(rope, "low_freq_factor", 1e-3, 1e6);
  result.high_freq_factor = required_number(rope, "high_freq_factor", 1e-3, 1e6);
  if (rope.ok() && result.high_freq_factor <= result.low_freq_factor) {
    rope.invalid(cat("\"high_freq_factor\" is ", result.high_freq_factor,
                     "; it must be above \"low_freq_factor\", ", result.low_freq_factor));
  }
}

void read_yarn(ConfigReader& rope, RopeConfig& result) {
  // 0 means the default, as in transformers' `x or default`.
  const auto or_default = [&](const char* key, double fallback) {
    const double value = rope.number(key, 0, 1e6).value_or(0);
    return value == 0 ? fallback : value;
  };
  result.beta_fast = or_default("beta_fast", 32);
  result.beta_slow = or_default("beta_slow", 1);
  result.truncate = rope.boolean("truncate").value_or(true);
  result.attention_factor = rope.number("attention_factor", 1e-3, 1e3);
  result.mscale = rope.number("mscale", 0, 1e3);
  result.mscale_all_dim = rope.number("mscale_all_dim", 0, 1e3);
}

/// The length before stretching. Phi-3 writes it at the top level, where it takes precedence:
/// transformers' standardize_rope_params.
int original_positions(ConfigReader& top, ConfigReader& rope, int max_position_embeddings) {
  const std::optional<int> outer =
      top.integer("original_max_position_embeddings", 1, kMaxPositions);
  const int inner =
      rope.integer("original_max_position_embeddings", 1, kMaxPositions, max_position_embeddings);
  return outer.value_or(inner);
}

}  // namespace

Result<RopeConfig> parse_rope_config(const Json& config, int max_position_embeddings,
                                     std::string_view what) {
  ConfigReader top(config, what);
  const Json parameters = without_nesting(merged_parameters(top), top);
  const std::string where = cat(what, ": rope parameters");
  ConfigReader rope(parameters, where);

  RopeConfig result;
  result.type = read_type(rope);
  // yarn divides by the logarithm of the base, so it must not be 1. With base 1, all dimensions
  // would also rotate at the same speed.
  constexpr double kMinTheta = 1.001, kMaxTheta = 1e15;
  result.theta = top.number("rope_theta", kMinTheta, kMaxTheta).value_or(result.theta);
  result.theta = rope.number("rope_theta", kMinTheta, kMaxTheta).value_or(result.theta);
  for (ConfigReader* reader : {&top, &rope}) {
    if (reader->number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
      reader->unimplemented("a \"partial_rotary_factor\" other than 1 is not supported");
    }
  }
  if (result.type == RopeConfig::Type::kLlama3 || result.type == RopeConfig::Type::kYarn) {
    result.original_max_position_embeddings =
        original_positions(top, rope, max_position_embeddings);
  }
  if (result.type == RopeConfig::Type::kYarn && !rope.has("factor")) {
    result.factor =
        static_cast<double>(max_position_embeddings) / result.original_max_position_embeddings;
  } else if (result.type != RopeConfig::Type::kDefault) {
    result.factor = required_number(rope, "factor", 1e-3, 1e6);
  }
  if (result.type == RopeConfig::Type::kLlama3) read_llama3(rope, result);
  if (result.type == RopeConfig::Type::kYarn) read_yarn(rope, result);
  if (rope.has("llama_4_scaling_beta"))
    rope.unimplemented("\"llama_4_scaling_beta\" is not supported");
  if (!top.ok()) return top.status();
  if (!rope.ok()) return rope.status();
  return result;
}

}  // namespace shoal
