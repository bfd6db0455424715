#pragma once
#include <cerrno>
#include <string>
#include <utility>

#include "runtime/base/status.h"

namespace shoal::shmtest {

/// The error for a step of building a condition that the kernel refused: `what`, with the errno of
/// the call just made.
inline Status failed(std::string what, Code code = Code::kFailedPrecondition) {
  return Status::error(code, std::move(what), errno);
}

}  // namespace shoal::shmtest
