#include "runtime/comm/check_arguments.h"

#include "runtime/base/cat.h"
#include "runtime/comm/tree_sum.h"

namespace shoal {

Status check_plan(const ReducePlan& plan, World world) {
  const auto wrong = [&](const char* what) {
    return Status::error(Code::kInvalidArgument,
                         cat("reduce plan for rank ", world.rank, " of ", world.size, ": ", what));
  };
  if (plan.contributions.size() != static_cast<size_t>(world.size))
    return wrong("made for another group size");
  int planes = 0;
  for (const int contributions : plan.contributions) {
    if (contributions < 0) return wrong("a negative number of contributions");
    planes += contributions;
  }
  if (planes == 0 || planes != plan.total_contributions())
    return wrong("program and contributions differ in number");
  int depth = 0;
  for (const int merges : plan.finish.merges) {
    if (++depth > kMaxFoldDepth) return wrong("the tree is too deep");
    if (merges < 0 || merges >= depth) return wrong("a merge without two values");
    depth -= merges;
  }
  return depth == 1 ? Status() : wrong("the program leaves more than one value");
}

Status check_gather(int root, size_t mine_bytes, std::span<const size_t> sizes, World world) {
  if (root >= 0 && root < world.size && sizes.size() == static_cast<size_t>(world.size) &&
      sizes[static_cast<size_t>(world.rank)] == mine_bytes) {
    return {};
  }
  return Status::error(
      Code::kInvalidArgument,
      cat("gather to rank ", root, " in a group of ", world.size, ": ", sizes.size(),
          " sizes are given, and rank ", world.rank, " brings ", mine_bytes, " bytes"));
}

}  // namespace shoal
