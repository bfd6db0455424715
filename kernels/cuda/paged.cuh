#pragma once
#include <cstdint>

#include "kernels/cuda/host_checks.h"
#include "kernels/cuda/machine.cuh"
#include "runtime/base/kv_block.h"
#include "runtime/device/cuda_ops.h"

/// Where the rows of a step and their keys and values are.
namespace shoal::cuda {

/// Bytes that copy_async takes together.
inline constexpr int kCopyBytes = 16;
/// Heads are padded to a multiple of this many elements, which is one of every step.
inline constexpr int kHeadDimUnit = 16;

/// The sequence of a row, and its position there. An idle row has a negative sequence.
struct RowPlace {
  int sequence, position;
  __device__ bool is_idle() const { return sequence < 0; }
};

__device__ inline RowPlace place_of(const ShoalStepRows& step, int64_t row) {
  const RowPlace place{load_global(step.sequence + row), load_global(step.position + row)};
  const bool known = place.sequence >= 0 && place.sequence < step.sequences &&
                     place.position >= 0 && place.position < step.table_stride * kBlockTokens;
  return {known ? place.sequence : -1, place.position};
}

/// The elements of a head's row in the cache and in q, where it is padded with zeros.
__host__ __device__ inline int row_elements(int head_dim) {
  return (head_dim + kHeadDimUnit - 1) / kHeadDimUnit * kHeadDimUnit;
}
__host__ __device__ inline int row_elements(const ShoalKvLayer& cache) {
  return row_elements(cache.head_dim);
}

/// The element of the cache at which the tile of a kv head begins in a block: first K, then V.
__device__ inline int64_t tile_of_block(const ShoalKvLayer& cache, int32_t block, int kv_head) {
  const int64_t tile = int64_t{block} * cache.kv_heads + kv_head;
  return tile * 2 * kBlockTokens * row_elements(cache);
}
/// The block that holds a position.
__device__ inline int32_t block_of(const ShoalStepRows& step, const RowPlace& place) {
  const int64_t entry = place.sequence * step.table_stride + place.position / kBlockTokens;
  return load_global(step.block_table + entry);
}
/// From the keys of a tile to its values.
__device__ inline int values_of_tile(const ShoalKvLayer& cache) {
  return kBlockTokens * row_elements(cache);
}

inline bool is_valid_step(const ShoalStepRows& step) {
  return in_range(step.rows, 1, kMostExtent) && in_range(step.sequences, 1, kMostExtent) &&
         in_range(step.table_stride, 1, kMostExtent / kBlockTokens) && is_given(step.position, 4) &&
         is_given(step.sequence, 4) && is_given(step.first_row, 4) && is_given(step.row_count, 4) &&
         is_given(step.block_table, 4);
}

inline bool is_valid_cache(const ShoalKvLayer& cache) {
  return is_type(cache.type) && is_given(cache.data, kCopyBytes) &&
         in_range(cache.kv_heads, 1, kShoalMostKvHeads) &&
         in_range(cache.head_dim, 2, kShoalMostHeadDim) && cache.head_dim % 2 == 0;
}

/// Rows of activations from which copy_async reads `columns` elements each.
inline bool is_valid_q(const void* q, int64_t stride, int64_t columns) {
  return is_given(q, kCopyBytes) && in_range(stride, columns, kMostStride) && stride % 8 == 0;
}

}  // namespace shoal::cuda
