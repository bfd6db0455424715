#pragma once
#include <cstddef>
#include <span>

#include "runtime/base/reduce_tree.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"

namespace shoal {

/// Returns OK if the plan fits this group: it gives a count of contributions for each rank, and its
/// program takes all of them, leaves one value and needs no deeper stack than tree_sum has.
/// INVALID_ARGUMENT otherwise. Costs nanoseconds.
Status check_plan(const ReducePlan& plan, World world);

/// Returns OK if root is a rank of the group and sizes has one entry per rank, of which this rank's
/// is mine_bytes. INVALID_ARGUMENT otherwise.
Status check_gather(int root, size_t mine_bytes, std::span<const size_t> sizes, World world);

}  // namespace shoal
