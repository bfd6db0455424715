#include "runtime/engine/kv_block_pool.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace shoal {

KvBlockPool::KvBlockPool(int32_t blocks) : total_(blocks), free_(static_cast<size_t>(blocks)) {
  std::iota(free_.begin(), free_.end(), 0);  // ascending order is a heap, lowest first
}

std::optional<int32_t> KvBlockPool::allocate() {
  if (free_.empty()) return std::nullopt;
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t block = free_.back();
  free_.pop_back();
  return block;
}

void KvBlockPool::free(int32_t block) {
  free_.push_back(block);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace shoal
