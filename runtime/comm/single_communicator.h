#pragma once
#include <memory>

#include "runtime/comm/communicator.h"

namespace shoal {

/// A communicator for a group of one rank: it sums that rank's own contributions.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace shoal
