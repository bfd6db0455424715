#pragma once
#include <array>
#include <cstddef>
#include <vector>

#include "runtime/base/aligned_buffer.h"
#include "runtime/base/status.h"

namespace shoal {

/// One way to read memory. Which is the fastest depends on the processor: on some its own
/// prefetching is better alone, and on others instructions that prefetch help it.
struct ReadLoop {
  bool prefetch = false;    ///< with instructions that prefetch
  bool huge_pages = false;  ///< if the kernel grants them
  const char* name() const;
};

/// All loops, in the order in which measurement `number` (from 0) runs them. The first one finds
/// the caches as the program left them, and each other one as the loop before it did. So that none
/// is favoured, in four measurements in a row each loop has each place once, and runs once right
/// after each of the others.
std::array<ReadLoop, 4> read_order(int number);

struct ReadRate {
  double bytes_per_s = 0;
  ReadLoop loop;
  bool operator<(const ReadRate& other) const { return bytes_per_s < other.bytes_per_s; }
};

/// Measures how fast this machine reads memory at the moment. This bounds the speed of decoding,
/// which reads every weight once per token. `threads` threads sum buffers that are far larger than
/// the caches. A virtual machine's memory may be half as fast a second later, so measure both
/// before and after the run that you compare with it.
class ReadBandwidth {
 public:
  /// cpus: if it is not empty, thread i runs on cpus[i]. cache_bytes: of all caches together
  /// (cache_size.h). Error: RESOURCE_EXHAUSTED if there is no memory for the buffers.
  static Result<ReadBandwidth> create(int threads, std::vector<int> cpus, size_t cache_bytes);

  /// One pass of every loop: the best of them. It takes about a tenth of a second, and more
  /// the larger the caches are.
  ReadRate measure();

 private:
  /// What a thread reads. Not one buffer, because a page is huge or small for every reader.
  struct Memory {
    AlignedBuffer huge_pages, small_pages;
    std::byte* of(ReadLoop loop) const {
      return (loop.huge_pages ? huge_pages : small_pages).as<std::byte>();
    }
  };
  ReadBandwidth(std::vector<Memory> memory, size_t bytes, std::vector<int> cpus)
      : memory_(std::move(memory)), bytes_(bytes), cpus_(std::move(cpus)) {}

  std::vector<Memory> memory_;  ///< one per thread
  size_t bytes_;                ///< of each buffer
  std::vector<int> cpus_;
  int measurements_ = 0;  ///< that have begun
};

}  // namespace shoal
