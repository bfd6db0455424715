#include "models/generation_config.h"

#include <limits>

#include "models/config_reader.h"

namespace shoal {
namespace {

std::optional<float> as_float(std::optional<double> value) {
  return value ? std::optional<float>(static_cast<float>(*value)) : std::nullopt;
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(const Json object, parse_config_object(text, what));
  ConfigReader config(object, what);
  // The smallest normal float, so that a positive value stays positive when it is narrowed.
  constexpr double kPositive = std::numeric_limits<float>::min();
  GenerationConfig generation;
  generation.temperature = as_float(config.number("temperature", 0, 100));
  generation.top_p = as_float(config.number("top_p", kPositive, 1));
  generation.min_p = as_float(config.number("min_p", 0, 1));
  generation.repetition_penalty = as_float(config.number("repetition_penalty", kPositive, 100));
  generation.top_k = config.integer("top_k", -1, std::numeric_limits<int32_t>::max());
  if (generation.top_k == -1) generation.top_k = 0;
  generation.eos_token_ids = config.token_ids("eos_token_id");
  // Greedy only if the file says so and has no temperature, because an author who writes a
  // temperature wants sampling.
  if (!config.boolean("do_sample").value_or(true) && !generation.temperature)
    generation.temperature = 0.0f;
  if (!config.ok()) return config.status();
  return generation;
}

Result<GenerationConfig> load_generation_config(const std::string& model_dir) {
  const Result<std::string> text = read_config_file(model_dir, "generation_config.json");
  if (!text.ok() && text.status().code() == Code::kNotFound) return GenerationConfig{};
  if (!text.ok()) return text.status();
  return parse_generation_config(*text, cat(model_dir, "/generation_config.json"));
}

}  // namespace shoal
