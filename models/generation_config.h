#pragma once
#include <string>
#include <string_view>

#include "models/model_config.h"
#include "runtime/base/status.h"

namespace shoal {

/// An absent generation_config.json gives an empty GenerationConfig. As in vLLM, every field that
/// is present is used, whatever do_sample says; do_sample=false without a temperature means
/// temperature 0. INVALID_ARGUMENT: malformed or impossible.
Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view what);
Result<GenerationConfig> load_generation_config(const std::string& model_dir);

}  // namespace shoal
