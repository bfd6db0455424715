#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/reduce_tree.h"

namespace shoal {

/// A small deterministic generator, which gives the same numbers in every process of a group.
class Pattern {
 public:
  explicit Pattern(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t next();
  /// A number in [0, bound).
  size_t below(size_t bound) { return static_cast<size_t>(next() % bound); }
  /// A random value of either sign. The magnitudes of the values differ widely, so that adding them
  /// in another order gives other bits.
  float value();

 private:
  uint64_t state_;
};

/// An all_reduce: the planes of every rank, and the sum that they must give.
struct TreeCase {
  ReducePlan plan;
  size_t count = 0;
  std::vector<std::vector<float>> own;  ///< by rank: the rank's contributions, one plane after the
                                        ///< other
  std::vector<float> sum;
};

/// Makes the case of a product whose K dimension of `units` is cut into `leaves`
/// (docs/architecture.md, "Same bits everywhere"). The expected sum is computed element by element
/// by walking the tree as it is defined, without a fold program.
TreeCase make_tree_case(int leaves, int units, int world_size, size_t count, uint64_t seed);

}  // namespace shoal
