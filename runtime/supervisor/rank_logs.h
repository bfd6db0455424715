#pragma once
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// Makes one unnamed file in memory per rank, for what a library in the rank writes.
/// RESOURCE_EXHAUSTED with errno.
Result<std::vector<Fd>> make_rank_logs(int ranks);

/// What is in them now, each cut to its first MiB; a log that cannot be read is empty.
std::vector<std::string> read_rank_logs(const std::vector<Fd>& logs);

}  // namespace shoal
