#pragma once
#include <cstddef>
#include <vector>

#include "runtime/base/aligned_buffer.h"
#include "runtime/base/status.h"

namespace shoal {

/// How fast this machine reads memory just now, in bytes per second: the yardstick of decoding,
/// which reads every weight once per token. So many threads sum buffers far larger than the caches.
/// A virtual machine's memory may be half as fast a second later, so what is compared with it
/// should stand between two measurements.
class ReadBandwidth {
 public:
  /// cpus: where not empty, thread i runs on cpus[i]. RESOURCE_EXHAUSTED: no memory for the
  /// buffers.
  static Result<ReadBandwidth> create(int threads, std::vector<int> cpus);

  /// The best of a few passes: some 50 ms.
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
