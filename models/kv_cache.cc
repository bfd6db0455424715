#include "models/kv_cache.h"

#include "runtime/base/counted.h"
#include "runtime/memory/populate.h"

namespace shoal {

int64_t KvCache::bytes(int layers, int64_t blocks, int kv_heads, int head_dim, Dtype dtype) {
  const KvLayer layer{nullptr, dtype, kv_heads, head_dim};
  return layers * blocks * kv_heads * layer.tile_elements() *
         static_cast<int64_t>(dtype_bytes(dtype));
}

Result<KvCache> KvCache::allocate(int layers, int blocks, int kv_heads, int head_dim, Dtype dtype) {
  KvCache cache;
  cache.size_bytes_ = bytes(layers, blocks, kv_heads, head_dim, dtype);
  Result<AlignedBuffer> memory = AlignedBuffer::allocate(static_cast<size_t>(cache.size_bytes_));
  if (!memory.ok())
    return memory.status().while_doing(cat("allocate the KV cache of ", counted(blocks, "block")));
  cache.memory_ = std::move(memory).value();
  // Touch the pages now instead of in the middle of a request: a page that cannot be had then ends
  // the start, with this error as the reason.
  const Status touched = populate(cache.memory_.as<>(), cache.memory_.bytes());
  if (!touched.ok())
    return touched.while_doing(cat("touch the KV cache of ", counted(blocks, "block")));
  const int64_t layer_bytes = bytes(1, blocks, kv_heads, head_dim, dtype);
  for (int i = 0; i < layers; ++i) {
    cache.layers_.push_back({cache.memory_.as<>() + i * layer_bytes, dtype, kv_heads, head_dim});
  }
  return cache;
}

}  // namespace shoal
