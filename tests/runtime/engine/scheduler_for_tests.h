#pragma once
#include "runtime/engine/scheduler.h"

namespace shoal {

/// A scheduler without a loop.
struct SchedulerForTests : Scheduler {
  explicit SchedulerForTests(const EngineLimits& limits,
                             SchedulingPolicy policy = SchedulingPolicy::kFcfs)
      : Scheduler(SchedulerKey(), limits, policy) {}
};

}  // namespace shoal
