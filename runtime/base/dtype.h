#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal {

/// Element types of weights, activations and the KV cache.
enum class Dtype : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

constexpr size_t dtype_bytes(Dtype dtype) {
  return dtype == Dtype::kF32 ? 4 : 2;
}

/// "float32", "float16", "bfloat16": the names of config.json.
std::string_view dtype_name(Dtype dtype);
/// Accepts config.json's names (with or without "torch.") and safetensors' (F32, F16, BF16).
std::optional<Dtype> parse_dtype(std::string_view name);

/// Convert bit patterns to float and back. Rounding is to nearest even, and NaN stays NaN. They
/// convert one number at a time, for tests and small tables.
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

}  // namespace shoal
