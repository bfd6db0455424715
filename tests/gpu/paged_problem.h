#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/kv_block.h"
#include "tests/gpu/layer_problem.h"

namespace shoal::gpu {

/// Rows of one sequence in a step, at positions that follow each other.
struct Stretch {
  int first_position, rows;
};

/// The rows of a step, and where their keys and values are.
struct PagedStep {
  std::vector<int32_t> position, sequence, first_row, row_count, block_table;
  int table_stride = 0;
  int blocks = 0;  ///< of the cache
  int rows() const { return static_cast<int>(position.size()); }
  /// The block and the place in it of a position.
  int block_of(int of_sequence, int at) const {
    return block_table[static_cast<size_t>(of_sequence * table_stride + at / kBlockTokens)];
  }
};

/// A step of one stretch per sequence. The blocks are dealt out in an order that the seed decides.
/// Between sequences there are idle rows, if asked for.
PagedStep make_step(const std::vector<Stretch>& stretches, uint64_t seed, bool idle_rows = false);

ShoalStepRows put_step(Bench& bench, const PagedStep& step);

/// The elements of a head's row in a cache on a device and in q (ShoalKvLayer).
inline int row_elements(int head_dim) {
  return (head_dim + 15) / 16 * 16;
}

/// The element of a cache on a device at which the key (or value) of a position begins.
size_t place_in_cache(const PagedStep& step, int sequence, int position, int kv_head, bool value,
                      int kv_heads, int head_dim);
inline size_t cache_elements(const PagedStep& step, int kv_heads, int head_dim) {
  return static_cast<size_t>(step.blocks) * static_cast<size_t>(kv_heads) * 2 * kBlockTokens *
         static_cast<size_t>(row_elements(head_dim));
}

}  // namespace shoal::gpu
