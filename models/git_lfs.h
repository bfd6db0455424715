#pragma once
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// Checks that a file of a model is not a Git LFS pointer: the few lines that a clone without Git
/// LFS has in place of each large file. It is the most common broken download. Error:
/// INVALID_ARGUMENT, with the lines to type. `what` is the file's path.
Status check_no_lfs_pointer(std::string_view text, std::string_view what);

}  // namespace shoal
