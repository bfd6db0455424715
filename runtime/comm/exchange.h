#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// Each rank passes in a few bytes and gets those of all ranks, in rank order. Opening a
/// communicator needs it. It goes through the front, because the group does not have a transport of
/// its own at that point. UNAVAILABLE: the front is gone. DEADLINE_EXCEEDED: a rank has sent
/// nothing.
using Exchange = std::function<Result<std::vector<std::string>>(std::string mine)>;

}  // namespace shoal
