#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// The sysctl that says how many namespaces of a kind there may be, such as
/// "user.max_mnt_namespaces".
std::string limit_name(NamespaceKind kind);

/// Its value. nullopt: it cannot be read, or it is that of a new user namespace. That one has no
/// limit of its own; its namespaces count against the limits of the user namespaces around it.
std::optional<int64_t> namespace_limit(NamespaceKind kind);

/// The error if no condition can run: the cause, and what can help against it, each on a line of
/// its own. What allows user namespaces does not raise the limit of their number.
Status why_forbidden(const Outcome& outcome);

}  // namespace shoal::shmtest
