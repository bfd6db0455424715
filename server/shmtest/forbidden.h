#pragma once
#include "runtime/base/status.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// The error if no condition can run: the cause, and what can help against it, each on a line of
/// its own. What allows user namespaces does not raise the limit of their number.
Status why_forbidden(const Outcome& outcome);

}  // namespace shoal::shmtest
