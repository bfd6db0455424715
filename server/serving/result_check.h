#pragma once
#include "runtime/base/status.h"
#include "runtime/engine/step_plan.h"

namespace shoal {

/// Checks that a result answers the plan. It comes from another process, so it is not trusted.
/// INTERNAL: another step, other sequences, or a token that is not below vocab_size.
Status check_result(const StepPlan& plan, const StepResult& result, int vocab_size);

}  // namespace shoal
