#include "runtime/base/failure.h"

namespace shoal {

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::kOwn:
      return "own";
    case Fault::kTransport:
      return "transport";
    case Fault::kSharedMemory:
      return "shared_memory";
    case Fault::kDeath:
      return "death";
    case Fault::kSilence:
      return "silence";
    case Fault::kSpinning:
      return "spinning";
    case Fault::kShortage:
      return "shortage";
    case Fault::kOutside:
      return "outside";
    case Fault::kHeldUp:
      return "held_up";
    case Fault::kModelChanged:
      return "model_changed";
    case Fault::kOutOfMemory:
      return "out_of_memory";
    case Fault::kGivenUp:
      return "given_up";
    case Fault::kPolicy:
      return "policy";
  }
  return "unknown";
}

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kLook:
      return "look";
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

const char* phase_meaning(Phase phase) {
  switch (phase) {
    case Phase::kLook:
      return "the model's files are being looked at";
    case Phase::kBudget:
      return "what the transport needs is being compared with what is free";
    case Phase::kProbe:
      return "what the system allows is being looked at";
    case Phase::kReserve:
      return "the transport's memory is being taken";
    case Phase::kSpawn:
      return "the ranks are being started";
    case Phase::kOpen:
      return "the ranks are being connected";
    case Phase::kSelfTest:
      return "the transport is being tested";
    case Phase::kLoad:
      return "the weights are being read";
    case Phase::kTouch:
      return "the KV cache is being allocated";
    case Phase::kWarmUp:
      return "a first step is being computed";
    case Phase::kStep:
      return "a step is being computed";
    case Phase::kIdle:
      return "the ranks wait for a step";
  }
  return "nobody knows what";
}

}  // namespace shoal
