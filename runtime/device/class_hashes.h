#pragma once
#include "runtime/device/tensor_core_class.h"

// Written by tests/data/tensor_core/class_hashes.py.
namespace shoal {

inline constexpr TensorCoreHashes kSm80Hashes{0x5d0f7870ae2a50f9, 0xebd341f6c6b79ded};
inline constexpr TensorCoreHashes kSm90Hashes{0x23ee274c7c4c6c9b, 0x6fedd2ee18226737};

}  // namespace shoal
