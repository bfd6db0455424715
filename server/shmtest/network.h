#pragma once
#include "runtime/base/status.h"
#include "server/shmtest/condition.h"

namespace shoal::shmtest {

/// Sets up the network namespace that the calling process is alone in: loopback up, then what the
/// condition takes away. Needs that namespace's own /proc/sys. FAILED_PRECONDITION: the kernel
/// refuses.
Status set_up_network(const Condition& condition);

}  // namespace shoal::shmtest
