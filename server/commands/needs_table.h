#pragma once
#include <string>

namespace shoal {

/// What every rung needs, by number of ranks, and what NCCL's versions would: the Markdown of
/// docs/transport.md, from the same arithmetic that refuses rungs.
std::string needs_table();

}  // namespace shoal
