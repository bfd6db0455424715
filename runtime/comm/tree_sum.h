#pragma once
#include <cstddef>
#include <span>

#include "runtime/base/reduce_tree.h"

namespace shoal {

/// out[i] = the program's tree sum of planes[0][i], planes[1][i], ... for i < count. There is one
/// plane per value of the program, and out may not overlap any of them. Precondition: check_plan
/// (check_arguments.h). Works in tiles that stay in the first-level cache for any number of planes.
void tree_sum(const FoldProgram& program, std::span<const float* const> planes, float* out,
              size_t count);

/// A range of elements of a message.
struct Slice {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

/// The part of an all_reduce that fits into a buffer at once: elements [begin, begin + width) of
/// planes that have `count` elements.
struct ReducePiece {
  const ReducePlan& plan;
  const float* own;
  float* out;
  size_t count;
  size_t begin;
  size_t width;
};

/// The share of a large message that `rank` sums on behalf of all ranks. Shares are contiguous and
/// even, and are cut at whole cache lines of floats. A share may be empty.
Slice slice_of(int rank, int world_size, size_t count);

}  // namespace shoal
