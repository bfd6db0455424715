#pragma once
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
  /// Both must outlive it. Every kernel set gives the same sum.
  WeightSum(ThreadPool& pool, const KernelTable& kernels) : pool_(pool), kernels_(kernels) {}

  /// Adds these bytes, which the pool's threads share.
  void add(const void* data, size_t bytes);

  /// Adds `count` parts, and returns the number of the first one. A part that is never set counts
  /// as zero.
  size_t add_parts(size_t count);

  /// Sets a part to the sum of these bytes. Threads may set different parts at the same time.
  void set_part(size_t part, const void* data, size_t bytes);

  uint64_t value() const;

 private:
  ThreadPool& pool_;
  const KernelTable& kernels_;
  std::vector<uint64_t> parts_;
};

}  // namespace shoal
