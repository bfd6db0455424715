#pragma once
#include <cstdint>
#include <string>

#include "runtime/base/json.h"

namespace shoal {

/// The tables of docs/transport.md, as Markdown: what every rung needs by number of ranks, and what
/// the versions of NCCL would need, on a machine with pages of this size. They come from the same
/// arithmetic that refuses rungs.
std::string needs_table(int64_t page_bytes);

/// The same numbers: {"schema", "page_bytes", "rungs": [{"rung", "cost", "dev_shm_bytes": {"2":
/// ...}, "memory_bytes"}], "nccl": [{"version", "shm_bytes", "socket_bytes"}]}, by number of ranks;
/// null: not known. And every row of nccl_releases(): "nccl_releases": [{"minor", "last_patch",
/// "pool_bytes", "pool_file_bytes"}].
Json needs_json(int64_t page_bytes);

}  // namespace shoal
