#pragma once
#include "runtime/transport/facts/host_facts.h"
#include "server/cli/flags.h"
#include "server/host/engine_plan.h"

namespace shoal {

/// plan_engine() on the devices that choose_device() has chosen. Goes back to the CPU if
/// `auto` has chosen devices that cannot compute this model or have too little memory left for it.
/// Errors: those of plan_engine().
Result<EnginePlan> plan_on_device(EngineFlags* flags, const ModelFiles& model, const GpuFacts& gpu);

}  // namespace shoal
