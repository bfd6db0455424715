#include "runtime/worker/kv_cache.h"

#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc 2.36 of Debian 12 has it, older headers do not
#endif

namespace shoal {

int64_t KvCache::bytes(int layers, int64_t blocks, int kv_heads, int head_dim, Dtype dtype) {
  const KvLayer layer{nullptr, dtype, kv_heads, head_dim};
  return layers * blocks * kv_heads * layer.tile_elements() * static_cast<int64_t>(dtype_bytes(dtype));
}

Result<KvCache> KvCache::allocate(int layers, int blocks, int kv_heads, int head_dim, Dtype dtype) {
  KvCache cache;
  cache.size_bytes_ = bytes(layers, blocks, kv_heads, head_dim, dtype);
  Result<AlignedBuffer> memory = AlignedBuffer::allocate(static_cast<size_t>(cache.size_bytes_));
  if (!memory.ok()) return memory.status().while_doing(cat("allocate the KV cache of ", blocks, " blocks"));
  cache.memory_ = std::move(memory).value();
  // Now, not in the middle of a request: a page that cannot be had ends the start, with this line as the reason.
  if (!cache.memory_.empty() && ::madvise(cache.memory_.as<>(), cache.memory_.bytes(), MADV_POPULATE_WRITE) != 0 &&
      errno != EINVAL) {
    return Status::error(Code::kResourceExhausted, cat("touch ", cache.size_bytes_, " B of KV cache"), errno);
  }
  const int64_t layer_bytes = bytes(1, blocks, kv_heads, head_dim, dtype);
  for (int i = 0; i < layers; ++i) {
    cache.layers_.push_back({cache.memory_.as<>() + i * layer_bytes, dtype, kv_heads, head_dim});
  }
  return cache;
}

}  // namespace shoal
