#pragma once
#include "runtime/base/status.h"
#include "server/shmtest/condition.h"

namespace shoal::shmtest {

/// Takes from the calling process what the condition takes from its command: limits, capabilities,
/// system calls. To be called last before exec. FAILED_PRECONDITION: the kernel refuses.
Status confine(const Condition& condition);

}  // namespace shoal::shmtest
