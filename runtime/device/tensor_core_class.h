#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/device/device.h"

namespace shoal {

/// How tensor cores sum, on which the bits of products and of attention depend. A class is defined
/// by its results, and not by a device's compute capability.
enum class TensorCoreClass : int32_t {
  kUnknown,
  kSm80,  ///< compute capability 8.0 to 8.9, as published
  kSm90,  ///< 9.0 to 12.0, likewise
};

/// Hashes of what tensor cores make of the first kClassTiles judged tiles (judged_tiles.h), with
/// factors of each type. Every NaN counts as the same number.
struct TensorCoreHashes {
  uint64_t bf16 = 0, tf32 = 0;
  friend bool operator==(const TensorCoreHashes&, const TensorCoreHashes&) = default;
};
template <typename Archive>
void fields(Archive& archive, TensorCoreHashes& h) {
  archive(h.bf16, h.tf32);
}

/// All kinds of tiles are among these, several times.
inline constexpr int kClassTiles = 32;

/// What the device makes of `count` judged tiles from number `first` on, as bits: [count][16][8].
/// type: kShoalBf16, or kShoalF16 for tf32. Errors: those of Device. DEADLINE_EXCEEDED, as silence:
/// the device has not finished in 10 s, and what it was given stays until the process ends.
Result<std::vector<uint32_t>> multiply_judged_tiles(Device& device, int32_t type, int first,
                                                    int count);

/// Takes milliseconds. Errors: those of multiply_judged_tiles().
Result<TensorCoreHashes> hash_tensor_cores(Device& device);

/// The class that gives these results (class_hashes.h).
TensorCoreClass class_of(const TensorCoreHashes& hashes);

}  // namespace shoal
