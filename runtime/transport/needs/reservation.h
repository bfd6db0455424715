#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {

/// Takes the bytes in the directory as ShmSegment::create does, in as few files as this process's
/// file size limit allows. It shows whether a library can take them later in files of its own.
/// check_budget decides whether each of the library's files is within the limit.
Result<std::vector<ShmSegment>> reserve_for_library(int64_t bytes, const std::string& directory);

}  // namespace shoal
