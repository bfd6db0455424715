#pragma once
#include <string_view>

#include "models/model_config.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace shoal {

/// Reads the rotary embedding of a config.json, from rope_parameters or from rope_scaling and
/// rope_theta. UNIMPLEMENTED: a type other than default, linear, llama3, yarn, or parameters that
/// differ between layers; INVALID_ARGUMENT: malformed or impossible.
Result<RopeConfig> parse_rope_config(const Json& config, int max_position_embeddings,
                                     std::string_view what);

}  // namespace shoal
