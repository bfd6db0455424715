#pragma once
#include <vector>

#include "runtime/base/device_kind.h"

namespace shoal {

/// The deepest stack that a fold may need: enough for a balanced tree over 128 values. 16 leaves
/// need 5.
inline constexpr int kMaxFoldDepth = 8;

/// Half-open range of leaves, heads, units or columns.
struct Range {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// The units of one leaf of a row-parallel product (docs/architecture.md, "Same bits everywhere").
/// A K dimension of `units` units (heads, or groups of 16 columns of the MLP) is cut into `leaves`
/// pieces, whatever the number of ranks. Leaf i is [i*units/leaves, (i+1)*units/leaves), which may
/// be empty.
Range leaf_units(int leaf, int leaves, int units);

/// The most leaves of a model on devices.
inline constexpr int kMostDeviceLeaves = 8;

/// The number of leaves of a model, min(num_attention_heads, 16), or at most 8 on devices, whose
/// products keep a smaller stack. It is also the largest possible tensor-parallel degree.
int leaf_count(int num_attention_heads, DeviceKind device = DeviceKind::kCpu);

/// The contiguous leaves that a rank owns. If world_size is a power of two, they are a node of the
/// tree at that depth (a node of n leaves splits into ceil(n/2) | floor(n/2)). Otherwise the leaves
/// are divided as evenly as possible. Precondition: world_size <= leaves.
Range leaves_of_rank(int rank, int world_size, int leaves);

/// A tree sum as a program for a stack: push value 0, then fold merges[0] times (pop b, pop a, push
/// a + b), push value 1, and so on. One value remains at the end.
struct FoldProgram {
  std::vector<int> merges;
};

/// What one rank computes by itself: its leaves in order, without the empty ones, and how they fold
/// into contributions. Each contribution is the sum of a maximal complete sub-tree.
struct RankFold {
  struct Step {
    int leaf = 0;
    int merges = 0;  ///< folds after pushing this leaf
    /// The index of the contribution that is complete after these folds, as the only value on the
    /// stack; -1 if it takes more leaves.
    int contribution = -1;
  };
  std::vector<Step> steps;
  int contributions = 0;
};

/// How a row-parallel product is summed: which rank contributes which nodes, and how every rank
/// finishes the same tree. It depends only on (leaves, which of them are empty, world_size), so
/// that all ranks hold equal plans.
struct ReducePlan {
  std::vector<RankFold> ranks;     ///< one per rank
  std::vector<int> contributions;  ///< of each rank; their sum is finish.merges.size()
  FoldProgram finish;              ///< over all contributions, in rank order
  int total_contributions() const { return static_cast<int>(finish.merges.size()); }
};

/// Leaves without units are skipped, not added as zero. Precondition: 1 <= world_size <= leaves,
/// units > 0.
ReducePlan make_reduce_plan(int leaves, int units, int world_size);

}  // namespace shoal
