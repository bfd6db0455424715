#include "tests/conformance/tree_cases.h"

#include <cmath>
#include <optional>

namespace shoal {
namespace {

/// Sums the leaves [begin, end) of one element. If one rank owns a whole sub-tree, the sum of that
/// sub-tree is the rank's next contribution.
struct TreeWalk {
  const std::vector<int>& owner;   // the rank that owns each leaf
  const std::vector<bool>& empty;  // whether each leaf is empty
  const std::vector<const float*>& planes;
  size_t element = 0;
  size_t next_plane = 0;

  std::optional<float> sum(int begin, int end) {
    bool one_owner = true;
    bool any = false;
    for (int leaf = begin; leaf < end; ++leaf) {
      one_owner = one_owner && owner[leaf] == owner[begin];
      any = any || !empty[leaf];
    }
    if (!any) return std::nullopt;
    if (one_owner) return planes[next_plane++][element];
    const int middle = (begin + end + 1) / 2;
    const std::optional<float> left = sum(begin, middle);
    const std::optional<float> right = sum(middle, end);
    if (left && right) return *left + *right;
    return left ? left : right;
  }
};

}  // namespace

uint64_t Pattern::next() {  // The splitmix64 generator.
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

float Pattern::value() {
  const uint64_t bits = next();
  const float unit = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31F;
  return std::ldexp(unit, static_cast<int>(bits >> 60));
}

TreeCase make_tree_case(int leaves, int units, int world_size, size_t count, uint64_t seed) {
  TreeCase made;
  made.plan = make_reduce_plan(leaves, units, world_size);
  made.count = count;
  Pattern pattern(seed);
  std::vector<int> owner(leaves);
  std::vector<bool> empty(leaves);
  std::vector<const float*> planes;
  made.own.resize(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    const Range mine = leaves_of_rank(rank, world_size, leaves);
    for (int leaf = mine.begin; leaf < mine.end; ++leaf) {
      owner[leaf] = rank;
      empty[leaf] = static_cast<int64_t>(leaf) * units / leaves ==
                    static_cast<int64_t>(leaf + 1) * units / leaves;
    }
    made.own[rank].resize(made.plan.contributions[rank] * count);
    for (float& value : made.own[rank]) value = pattern.value();
    for (int plane = 0; plane < made.plan.contributions[rank]; ++plane) {
      planes.push_back(made.own[rank].data() + plane * count);
    }
  }
  for (size_t element = 0; element < count; ++element) {
    made.sum.push_back(*TreeWalk{owner, empty, planes, element}.sum(0, leaves));
  }
  return made;
}

}  // namespace shoal
