#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tests/emulator/flag_order.h"
#include "tests/emulator/report.h"

/// The memory of the emulated devices, and what of the host's memory they can reach. Device memory
/// is a memfd each, so that another process can import it.
namespace shoal::emulator {

enum class Kind {
  kDevice,     ///< of cudaMalloc
  kImported,   ///< another process's device memory
  kPinned,     ///< of cudaHostAlloc
  kRegistered  ///< the program's own, given to cudaHostRegister
};

/// One piece of memory. Its bytes do not move until it is released.
struct Piece {
  Kind kind = Kind::kDevice;
  int device = -1;  ///< whose memory it is; -1: the host's
  unsigned char* begin = nullptr;
  size_t bytes = 0;
  int fd = -1;
  /// A bit per byte that has been written. Only for kDevice.
  std::unique_ptr<std::atomic<uint64_t>[]> written;
  std::unique_ptr<Traces> traces;  ///< only for kDevice
};

/// The error of CUDA, or 0.
int32_t allocate_on_device(int device, size_t bytes, void** memory);
int32_t release_on_device(void* memory);  ///< also what was imported
int32_t allocate_pinned_memory(size_t bytes, void** memory);
int32_t release_pinned_memory(void* memory);
int32_t register_memory(void* memory, size_t bytes);
int32_t unregister_memory(void* memory);
/// Free and all bytes of the device, as far as this process has taken them.
size_t free_bytes(int device);

/// The handle names the process, its descriptor and the size. As with CUDA, the process that
/// exported a handle cannot import it.
int32_t export_piece(void* memory, unsigned char handle[64]);
int32_t import_piece(const unsigned char handle[64], void** memory);

/// The piece that holds the address, or nullptr.
const Piece* piece_of(const void* address);

/// False: the bytes begin in a piece and end behind it.
bool fits(const void* address, size_t bytes);

/// Marks bytes as written by a copy or by the host's memset.
void mark_written(const void* address, size_t bytes);

// Called by lanes for every access of global memory.

/// Reports an address that is misaligned, that the running device does not reach, or that nobody
/// has written.
void check_read(const void* address, size_t bytes, const Place& place);
/// The same for a write, which marks the bytes. False: the write must be left out, because the
/// settings say that it is lost.
bool check_write(const void* address, size_t bytes, const Place& place);

// Called by lanes for flags.

/// Call it before a flag is set. From then on the flag stands for everything that this kernel has
/// done so far.
void tell_by_flag(const uint64_t* flag);
/// Call it after a look at a flag. value: what the flag contained.
void look_at_flag(const uint64_t* flag, uint64_t value);

/// The device whose kernel the calling thread runs.
extern thread_local constinit int running_device;

}  // namespace shoal::emulator
