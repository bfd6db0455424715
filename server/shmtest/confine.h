#pragma once
#include "runtime/base/status.h"
#include "server/shmtest/condition.h"

namespace shoal::shmtest {

/// Takes from the calling process what the condition denies its command: limits, capabilities,
/// system calls. Call it last before exec. Error: FAILED_PRECONDITION if the kernel refuses.
Status confine(const Condition& condition);

}  // namespace shoal::shmtest
