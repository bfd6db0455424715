#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/emulator/report.h"

namespace shoal::emulator {

/// The bytes of memory that a block may have on every device that the kernels are built for.
inline constexpr size_t kMostBlockMemory = 99 * 1024;
/// What a block may have of it without asking for more (cudaFuncSetAttribute).
inline constexpr size_t kPlainBlockMemory = 48 * 1024;

/// Lets the blocks of a kernel have this much memory on the device. False: no device has that much.
bool raise_block_memory(int device, const void* kernel, size_t bytes);
bool may_have_block_memory(int device, const void* kernel, size_t bytes);

/// Memory that blocks use, one after the other. Behind it lie pages that nobody may touch. A lane
/// that touches them is reported, and its kernel ends.
class BlockMemory {
 public:
  BlockMemory();
  ~BlockMemory();
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  /// The memory of a new block. It has `bytes` bytes, at most kMostBlockMemory, and is aligned to
  /// 128. It is filled with NaN, in bfloat16 as well as in float32. Up to 127 unused bytes may lie
  /// between its end and the guarded pages.
  unsigned char* begin_block(size_t bytes);
  const unsigned char* guard() const { return guard_; }

 private:
  unsigned char* mapped_ = nullptr;
  unsigned char* guard_ = nullptr;
};

/// The guard behind the memory of the running lane's block. nullptr: the thread runs no lane.
extern thread_local constinit const unsigned char* running_guard;

/// Reports bytes that are not all inside the memory of the running lane's block.
void check_block_memory(const void* address, size_t bytes, const Place& place);
/// Reads a row of a matrix. It is made where the kernel is compiled, so that ThreadSanitizer sees
/// it.
inline void read_row(const void* row, unsigned char (&to)[16], const Place& place) {
  if (reinterpret_cast<uintptr_t>(row) % sizeof(to) != 0)
    report(Fault::kMisaligned, place, "a row of a matrix");
  check_block_memory(row, sizeof(to), place);
  std::memcpy(to, row, sizeof(to));
}

}  // namespace shoal::emulator
