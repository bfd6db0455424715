#pragma once
#include <cstddef>
#include <span>

#include "runtime/base/reduce_tree.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"

namespace shoal {

/// OK when the plan is one for this group: a count of contributions per rank, and a program over
/// all of them that leaves one value and needs no deeper stack than tree_sum has. INVALID_ARGUMENT
/// otherwise. Costs nanoseconds.
Status check_plan(const ReducePlan& plan, World world);

/// OK when root is a rank and sizes has one entry per rank, this rank's being mine_bytes.
/// INVALID_ARGUMENT otherwise.
Status check_gather(int root, size_t mine_bytes, std::span<const size_t> sizes, World world);

}  // namespace shoal
