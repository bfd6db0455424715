#pragma once
#include <string>
#include <string_view>

#include "runtime/base/json.h"

namespace shoal {

// Quantised checkpoints are not supported. This finds out what they are, for the message.

/// The message that says why a quantised checkpoint is refused, and what to download instead.
/// `method` is the quantisation that the checkpoint names; empty: it names none.
std::string quantized_not_supported(std::string_view method);

/// The method of a quantization_config of config.json; empty if it names none.
std::string quantization_method(const Json& config);

/// The method of the file hf_quant_config.json, which NVIDIA's Model Optimizer writes beside
/// config.json; empty if there is none, or if it names none.
std::string quantization_method_beside(const std::string& model_dir);

/// Whether weights of this type of a safetensors file are quantised.
bool is_quantized_dtype(std::string_view dtype);

}  // namespace shoal
