#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/reduce_tree.h"

namespace shoal {

/// Small deterministic generator: the same numbers in every process of a group.
class Pattern {
 public:
  explicit Pattern(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t next();
  /// In [0, bound).
  size_t below(size_t bound) { return static_cast<size_t>(next() % bound); }
  /// Of either sign, with magnitudes so far apart that another order of a sum gives other bits.
  float value();

 private:
  uint64_t state_;
};

/// An all_reduce: every rank's planes, and the sum they must give.
struct TreeCase {
  ReducePlan plan;
  size_t count = 0;
  std::vector<std::vector<float>> own;  ///< by rank: its contributions, one plane after the other
  std::vector<float> sum;
};

/// The case for a product whose K dimension of `units` is cut into `leaves` (docs/architecture.md,
/// "Same bits everywhere"). The sum is made by walking the tree's definition, one element after the
/// other, with no fold program.
TreeCase make_tree_case(int leaves, int units, int world_size, size_t count, uint64_t seed);

}  // namespace shoal
