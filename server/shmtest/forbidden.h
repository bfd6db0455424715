#pragma once
#include <cstdint>
#include <optional>

#include "runtime/base/status.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// The sysctl user.NAME: how many namespaces there may be. nullopt: it cannot be read, or it is
/// that of a new user namespace, which has no limit of its own, but is counted in those around it.
std::optional<int64_t> namespace_limit(const char* name);

/// The error if no condition can run: the cause, and what can help against it, each on a line of
/// its own. What allows user namespaces does not raise the limit of their number.
Status why_forbidden(const Outcome& outcome);

}  // namespace shoal::shmtest
