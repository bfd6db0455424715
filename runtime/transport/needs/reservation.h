#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {

/// Takes the bytes in the directory as ShmSegment::create does, for a library that will take them
/// in files of its own: in as few files as this process's file size limit allows. Whether each of
/// the library's files is within that limit is check_budget's.
Result<std::vector<ShmSegment>> reserve_for_library(int64_t bytes, const std::string& directory);

}  // namespace shoal
