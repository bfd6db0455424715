#pragma once
#include <cstdint>
#include <vector>

#include "kernels/args.h"
#include "runtime/base/aligned_buffer.h"

namespace shoal {

/// A rank's paged KV cache: one KvLayer per layer. All its memory is touched at the start, so that
/// no page can be missing later.
class KvCache {
 public:
  /// RESOURCE_EXHAUSTED, with the number of blocks and the size: the memory is refused.
  static Result<KvCache> allocate(int layers, int blocks, int kv_heads, int head_dim, Dtype dtype);

  /// The bytes that allocate() takes for these numbers.
  static int64_t bytes(int layers, int64_t blocks, int kv_heads, int head_dim, Dtype dtype);

  const std::vector<KvLayer>& layers() const { return layers_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  AlignedBuffer memory_;
  std::vector<KvLayer> layers_;
  int64_t size_bytes_ = 0;
};

}  // namespace shoal
