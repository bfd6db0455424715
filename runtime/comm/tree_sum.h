#pragma once
#include <cstddef>
#include <span>

#include "runtime/base/reduce_tree.h"

namespace shoal {

/// Deepest stack that a FoldProgram may need: enough for a balanced tree over 128 values.
inline constexpr int kMaxFoldDepth = 8;

/// out[i] = the program's tree sum of planes[0][i], planes[1][i], ... for i < count. One plane per
/// value of the program; out overlaps none of them. Precondition: check_plan (check_arguments.h).
/// Works in tiles that stay in the first-level cache, however many planes there are.
void tree_sum(const FoldProgram& program, std::span<const float* const> planes, float* out,
              size_t count);

/// Elements of a message.
struct Slice {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

/// A piece of an all_reduce, as far as a buffer reaches: elements [begin, begin + width) of planes
/// of `count`.
struct ReducePiece {
  const ReducePlan& plan;
  const float* own;
  float* out;
  size_t count;
  size_t begin;
  size_t width;
};

/// The share of a large message that `rank` sums for everybody: contiguous, even, cut at whole
/// cache lines of floats. It may be empty.
Slice slice_of(int rank, int world_size, size_t count);

}  // namespace shoal
