#pragma once
#include <cstdint>
#include <cstring>

#include "runtime/base/dtype.h"

namespace shoal::reference {

/// Element `index` of an array of dtype, wherever it lies.
inline float load(const void* data, Dtype dtype, int64_t index) {
  const auto* bytes = static_cast<const std::byte*>(data) + index * static_cast<int64_t>(dtype_bytes(dtype));
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return dtype == Dtype::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

/// Rounds to dtype and stores.
inline void store(float value, void* data, Dtype dtype, int64_t index) {
  auto* bytes = static_cast<std::byte*>(data) + index * static_cast<int64_t>(dtype_bytes(dtype));
  if (dtype == Dtype::kF32) {
    std::memcpy(bytes, &value, sizeof value);
    return;
  }
  const uint16_t bits = dtype == Dtype::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(bytes, &bits, sizeof bits);
}

}  // namespace shoal::reference
