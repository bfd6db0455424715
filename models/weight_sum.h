#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/base/thread_pool.h"

namespace shoal {

/// A checksum (XXH3, 64 bits) of a rank's weights as they lie in its memory, so that ranks that are
/// started again can show that they loaded the same. Equal bytes in equal order give equal sums,
/// whatever the number of threads is. It guards against mistakes, and not against a forger. Not
/// thread-safe but for set_part().
class WeightSum {
 public:
  explicit WeightSum(ThreadPool& pool);

  /// Adds these bytes, which the pool's threads share.
  void add(const void* data, size_t bytes);

  /// Adds `count` parts, and returns the number of the first one. A part that is never set counts
  /// as zero.
  size_t add_parts(size_t count);

  /// Sets a part to the sum of these bytes. Threads may set different parts at the same time.
  void set_part(size_t part, const void* data, size_t bytes);

  uint64_t value() const;

  /// The time that summing has taken, in seconds, if the pool's threads shared it evenly.
  double seconds() const { return 1e-9 * static_cast<double>(thread_ns_) / pool_.size(); }

 private:
  ThreadPool& pool_;
  const KernelTable& kernels_;  // the fastest of this processor: all give the same sum
  std::vector<uint64_t> parts_;
  std::atomic<int64_t> thread_ns_{0};  ///< of all threads together
};

}  // namespace shoal
