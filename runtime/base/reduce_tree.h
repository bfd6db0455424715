#pragma once
#include <vector>

namespace shoal {

/// Half-open range of leaves, heads, units or columns.
struct Range {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// The leaves of a row-parallel product (docs/architecture.md, "Same bits everywhere"): how a K
/// dimension of `units` (heads, or 16 columns of the MLP) is cut into `leaves` pieces, whatever the
/// number of ranks. Leaf i is [i*units/leaves, (i+1)*units/leaves); it may be empty.
Range leaf_units(int leaf, int leaves, int units);

/// The number of leaves of a model: min(16, num_attention_heads). It bounds the tensor-parallel
/// size.
int leaf_count(int num_attention_heads);

/// The contiguous leaves that a rank owns. For a power of two: the tree's nodes at that depth (a
/// node of n leaves splits ceil(n/2) | floor(n/2)); otherwise as even as they go. Precondition:
/// world_size <= leaves.
Range leaves_of_rank(int rank, int world_size, int leaves);

/// A tree sum as a program for a stack: push value 0, then fold merges[0] times (pop b, pop a, push
/// a + b), push value 1, and so on. One value remains at the end.
struct FoldProgram {
  std::vector<int> merges;
};

/// What one rank computes by itself: its leaves in order (empty ones left out) and how they fold
/// into contributions, each the sum of a maximal complete sub-tree.
struct RankFold {
  struct Step {
    int leaf = 0;
    int merges = 0;  ///< folds after pushing this leaf
    int contribution =
        -1;  ///< after the folds, the stack's one value is this contribution; -1: goes on
  };
  std::vector<Step> steps;
  int contributions = 0;
};

/// How a row-parallel product is summed: who contributes which nodes, and how every rank finishes
/// the same tree. A pure function of (leaves, which are empty, world_size): all ranks hold equal
/// plans.
struct ReducePlan {
  std::vector<RankFold> ranks;     ///< one per rank
  std::vector<int> contributions;  ///< of each rank; their sum is finish.merges.size()
  FoldProgram finish;              ///< over all contributions, in rank order
  int total_contributions() const { return static_cast<int>(finish.merges.size()); }
};

/// Leaves whose leaf_units are empty are skipped, not added as zero. Precondition: 1 <= world_size
/// <= leaves, units > 0.
ReducePlan make_reduce_plan(int leaves, int units, int world_size);

}  // namespace shoal
