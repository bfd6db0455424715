#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "tests/conformance/tree_cases.h"

namespace shoal {

/// Empty when the communicator gives the case's sum bit for bit.
std::string reduce_and_compare(Communicator& communicator, const TreeCase& tree);

/// Empty when a gather of made-up bytes, others for every round, brings root what each rank has.
std::string gather_and_compare(Communicator& communicator, int root,
                               const std::vector<size_t>& sizes, uint64_t round);

}  // namespace shoal
