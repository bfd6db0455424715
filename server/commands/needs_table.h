#pragma once
#include <string>

namespace shoal {

/// The tables of docs/transport.md, as Markdown: what every rung needs by number of ranks, and what
/// the versions of NCCL would need. They come from the same arithmetic that refuses rungs.
std::string needs_table();

}  // namespace shoal
