#pragma once
#include <cstddef>

namespace shoal::emulator {

/// The bytes of memory that a block may have on every device that the kernels are built for.
inline constexpr size_t kMostBlockMemory = 99 * 1024;
/// What a block may have of it without asking for more (cudaFuncSetAttribute).
inline constexpr size_t kPlainBlockMemory = 48 * 1024;

/// Lets the blocks of a kernel have this much memory on the device. False: no device has that much.
bool raise_block_memory(int device, const void* kernel, size_t bytes);
bool may_have_block_memory(int device, const void* kernel, size_t bytes);

}  // namespace shoal::emulator
