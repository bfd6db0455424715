#pragma once
#include <string_view>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/base/status.h"
#include "runtime/control/messages.h"

namespace shoal {

/// The kernels that a rank computes with: the set called `name`, unless a test asks for others.
///
/// SHOAL_TEST_KERNEL_SETS=SET,SET...: rank r's n-th start takes set (r + n) modulo their number, so
/// that ranks use different sets and a rank that is started again another one.
/// SHOAL_TEST_WRONG_KERNEL=RANK:KERNEL (or all:KERNEL): the kernel with this name in KernelTable
/// computes one bit wrongly, as a defective processor may; the start is then refused
/// (runtime/worker/arithmetic.h).
/// FAILED_PRECONDITION or INVALID_ARGUMENT: there is no such set here, or no such kernel.
Result<const KernelTable*> kernels_of_rank(std::string_view name, const RankStart& place);

/// The names of KernelTable's kernels.
std::vector<std::string_view> kernel_names();

/// `right`, but the kernel called `kernel` changes a bit of its result. The table is one per
/// process, and `right` must outlive it.
Result<const KernelTable*> with_wrong_kernel(const KernelTable& right, std::string_view kernel);

}  // namespace shoal
