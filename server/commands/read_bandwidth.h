#pragma once
#include <cstddef>
#include <vector>

#include "runtime/base/aligned_buffer.h"
#include "runtime/base/status.h"

namespace shoal {

/// Measures how fast this machine reads memory at the moment, in bytes per second. This bounds the
/// speed of decoding, which reads every weight once per token. `threads` threads sum buffers that
/// are far larger than the caches. A virtual machine's memory may be half as fast a second later,
/// so measure both before and after the run that you compare with it.
class ReadBandwidth {
 public:
  /// cpus: if it is not empty, thread i runs on cpus[i]. Error: RESOURCE_EXHAUSTED if there is no
  /// memory for the buffers.
  static Result<ReadBandwidth> create(int threads, std::vector<int> cpus);

  /// Returns the best of a few passes, which take about 50 ms together.
  double measure();

 private:
  ReadBandwidth(std::vector<AlignedBuffer> buffers, size_t bytes_per_thread, std::vector<int> cpus)
      : buffers_(std::move(buffers)), bytes_per_thread_(bytes_per_thread), cpus_(std::move(cpus)) {}

  std::vector<AlignedBuffer> buffers_;  ///< one per thread
  size_t bytes_per_thread_;
  std::vector<int> cpus_;
  bool touched_ = false;
};

}  // namespace shoal
