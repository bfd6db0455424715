#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/args.h"
#include "runtime/base/dtype.h"

namespace shoal::reference {

/// Returns element `index` of an array of dtype. The array need not be aligned.
inline float load(const void* data, Dtype dtype, int64_t index) {
  const auto* bytes =
      static_cast<const std::byte*>(data) + index * static_cast<int64_t>(dtype_bytes(dtype));
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

/// Return the index of element i of a key or value in the cache. key counts within the block.
inline int64_t k_index(int64_t tile, int i, int key) {
  return tile + int64_t{i} * kBlockTokens + key;
}
inline int64_t v_index(const KvLayer& cache, int64_t tile, int i, int key) {
  return tile + int64_t{cache.head_dim} * kBlockTokens + int64_t{key} * cache.head_dim + i;
}

}  // namespace shoal::reference
