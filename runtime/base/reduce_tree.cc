#include "runtime/base/reduce_tree.h"

#include <algorithm>

namespace shoal {
namespace {

constexpr int kMaxLeaves = 16;

/// The two children of a node of the canonical tree, each as the range of leaves below it.
struct Halves {
  Range left, right;
};
Halves halves(Range node) {
  const int middle = node.begin + (node.size() + 1) / 2;
  return {{node.begin, middle}, {middle, node.end}};
}

bool power_of_two(int n) {
  return (n & (n - 1)) == 0;
}

/// Calls emit(node) for each maximal complete sub-tree of `node` inside `owned`, in leaf order.
template <typename Emit>
void maximal_nodes(Range node, Range owned, const Emit& emit) {
  if (node.empty() || node.end <= owned.begin || node.begin >= owned.end) return;
  if (owned.begin <= node.begin && node.end <= owned.end) {
    emit(node);
    return;
  }
  const auto [left, right] = halves(node);
  maximal_nodes(left, owned, emit);
  maximal_nodes(right, owned, emit);
}

/// Walks the tree below `node` and calls push(node) if is_value(node) is true, otherwise goes on
/// with both halves. push returns false to leave a value out. merge() follows the two halves of a
/// node if both have values. Returns whether there was any value.
template <typename IsValue, typename Push, typename Merge>
bool fold(Range node, const IsValue& is_value, const Push& push, const Merge& merge) {
  if (node.empty()) return false;
  if (is_value(node)) return push(node);
  if (node.size() == 1) return false;
  const auto [left, right] = halves(node);
  const bool has_left = fold(left, is_value, push, merge);
  const bool has_right = fold(right, is_value, push, merge);
  if (has_left && has_right) merge();
  return has_left || has_right;
}

}  // namespace

Range leaf_units(int leaf, int leaves, int units) {
  const auto cut = [&](int i) {
    return static_cast<int>(static_cast<long long>(i) * units / leaves);
  };
  return {cut(leaf), cut(leaf + 1)};
}

int leaf_count(int num_attention_heads, DeviceKind device) {
  return std::min(device == DeviceKind::kCuda ? kMostDeviceLeaves : kMaxLeaves,
                  num_attention_heads);
}

Range leaves_of_rank(int rank, int world_size, int leaves) {
  if (!power_of_two(world_size))
    return {rank * leaves / world_size, (rank + 1) * leaves / world_size};
  Range node{0, leaves};
  for (int half = world_size / 2; half > 0; half /= 2) {
    const auto [left, right] = halves(node);
    node = (rank & half) ? right : left;
  }
  return node;
}

ReducePlan make_reduce_plan(int leaves, int units, int world_size) {
  const auto has_units = [&](int leaf) { return !leaf_units(leaf, leaves, units).empty(); };
  ReducePlan plan;
  std::vector<Range> nodes;  // every contribution, in leaf order
  for (int rank = 0; rank < world_size; ++rank) {
    RankFold mine;
    maximal_nodes({0, leaves}, leaves_of_rank(rank, world_size, leaves), [&](Range node) {
      const bool any = fold(
          node, [](Range r) { return r.size() == 1; },
          [&](Range leaf) {
            if (!has_units(leaf.begin)) return false;
            mine.steps.push_back({leaf.begin, 0, -1});
            return true;
          },
          [&] { ++mine.steps.back().merges; });
      if (!any) return;
      mine.steps.back().contribution = mine.contributions++;
      nodes.push_back(node);
    });
    plan.contributions.push_back(mine.contributions);
    plan.ranks.push_back(std::move(mine));
  }
  fold(
      {0, leaves}, [&](Range r) { return std::find(nodes.begin(), nodes.end(), r) != nodes.end(); },
      [&](Range) {
        plan.finish.merges.push_back(0);
        return true;
      },
      [&] { ++plan.finish.merges.back(); });
  return plan;
}

}  // namespace shoal
