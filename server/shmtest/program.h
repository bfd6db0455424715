#pragma once
#include <string>

#include "runtime/base/status.h"

namespace shoal::shmtest {

/// Checks that the program exists, searching PATH as execvp does. Error: NOT_FOUND or
/// PERMISSION_DENIED, as a shell would report, with what was probably meant.
Status find_program(const std::string& name);

/// Why the kernel did not start this program, where that failed with `error`.
std::string start_failure(const std::string& name, int error);

}  // namespace shoal::shmtest
