#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/kv_block.h"

namespace shoal {

/// How many blocks hold this many tokens.
inline int32_t blocks_for(int32_t tokens) {
  return tokens / kBlockTokens + (tokens % kBlockTokens != 0 ? 1 : 0);
}

/// Hands out KV blocks by number. The lowest free block goes first, so that plans depend only on
/// the calls. Not thread-safe.
class KvBlockPool {
 public:
  explicit KvBlockPool(int32_t blocks);

  /// Takes a free block; nullopt if there is none.
  std::optional<int32_t> allocate();
  /// Precondition: block came from allocate() and has not been freed since.
  void free(int32_t block);
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }
  int32_t total_blocks() const { return total_; }

 private:
  int32_t total_;
  std::vector<int32_t> free_;  // a heap, lowest first
};

}  // namespace shoal
