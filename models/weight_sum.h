#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/thread_pool.h"

namespace shoal {

/// A checksum (XXH3, 64 bits) of a rank's weights as they lie in its memory, so that ranks that are
/// started again can show that they loaded the same. Equal bytes in equal order give equal sums,
/// whatever the number of threads is. It guards against mistakes, and not against a forger. Not
/// thread-safe.
class WeightSum {
 public:
  explicit WeightSum(ThreadPool& pool) : pool_(pool) {}

  /// Adds these bytes, which the pool's threads share.
  void add(const void* data, size_t bytes);

  uint64_t value() const;

 private:
  ThreadPool& pool_;
  std::vector<uint64_t> pieces_;
};

}  // namespace shoal
