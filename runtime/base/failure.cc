#include "runtime/base/failure.h"

namespace shoal {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kBudget:
      return "budget";
    case Phase::kProbe:
      return "probe";
    case Phase::kReserve:
      return "reserve";
    case Phase::kSpawn:
      return "spawn";
    case Phase::kOpen:
      return "open";
    case Phase::kSelfTest:
      return "self-test";
    case Phase::kLoad:
      return "load";
    case Phase::kTouch:
      return "touch";
    case Phase::kWarmUp:
      return "warm-up";
    case Phase::kStep:
      return "step";
    case Phase::kIdle:
      return "idle";
  }
  return "unknown";
}

}  // namespace shoal
