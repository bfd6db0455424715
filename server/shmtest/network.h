#pragma once
#include "runtime/base/status.h"
#include "server/shmtest/condition.h"

namespace shoal::shmtest {

/// Sets up the network namespace, in which the calling process must be alone: brings loopback up,
/// then takes away what the condition denies. /proc/sys must be that of this namespace. Error:
/// FAILED_PRECONDITION if the kernel refuses.
Status set_up_network(const Condition& condition);

}  // namespace shoal::shmtest
