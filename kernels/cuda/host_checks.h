#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda_ops.h"

/// What entries need to check their arguments and to shape their launches. Runs on the host.
namespace shoal::cuda {

/// A device takes no more blocks along y and z.
inline constexpr int64_t kMostBlocksY = 65535;
/// These keep the arithmetic of validation and of indices far from overflow.
inline constexpr int64_t kMostExtent = int64_t{1} << 30;
inline constexpr int64_t kMostStride = int64_t{1} << 32;

/// The least block memory that a block can have on a supported device (sm_86, sm_89, sm_120).
inline constexpr size_t kMostSharedBytes = 99 * 1024;

inline int64_t tiles(int64_t extent, int64_t tile) {
  return (extent + tile - 1) / tile;
}

inline bool in_range(int64_t value, int64_t low, int64_t high) {
  return low <= value && value <= high;
}

/// Rows and columns that can be counted; there may be none.
inline bool is_extent(int64_t rows, int64_t cols) {
  return in_range(rows, 0, kMostExtent) && in_range(cols, 0, kMostExtent);
}

/// Memory that an op reads or writes: it is there, and aligned to `bytes`.
inline bool is_given(const void* pointer, size_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}
/// Memory that an op can do without. nullptr is aligned to everything.
inline bool is_given_or_null(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

inline bool is_type(int32_t type) {
  return in_range(type, 0, kShoalTypes - 1);
}
/// A type that activations can have.
inline bool is_activation_type(int32_t type) {
  return type == kShoalBf16 || type == kShoalF32;
}
inline size_t element_bytes(int32_t type) {
  return type == kShoalF32 ? sizeof(float) : sizeof(uint16_t);
}

}  // namespace shoal::cuda
