#include "runtime/supervisor/restart_policy.h"

namespace shoal {

bool restart_may_cure(Fault fault) {
  switch (fault) {
    case Fault::kTransport:
    case Fault::kSharedMemory:
    case Fault::kDeath:
    case Fault::kSilence:
    case Fault::kSpinning:
    case Fault::kShortage:
    case Fault::kOutside:
    case Fault::kHeldUp:
    case Fault::kOutOfMemory:
      return true;
    case Fault::kOwn:
    case Fault::kModelChanged:
    case Fault::kGivenUp:
    case Fault::kPolicy:
      return false;
  }
  return false;
}

RestartPolicy::Next RestartPolicy::failed(const Failure& failure, const std::string& rung,
                                          double now_s, int64_t good_steps) {
  if (healthy_since_s_ >= 0 && now_s - healthy_since_s_ >= forget_s_)
    restarts_ = rung_failures_ = 0;
  healthy_since_s_ = -1;
  // A start may have moved on by itself, because the old rung no longer fitted.
  if (rung != rung_) rung_failures_ = 0;
  rung_ = rung;
  last_counts_ = failure.fault != Fault::kOutside || good_steps < kStepsThatEarn;
  if (last_counts_ && restarts_ >= max_restarts_) return Next::kGiveUp;
  restarts_ += last_counts_ ? 1 : 0;
  // Ranks that start move no bytes before they open their transport and after they have proven it.
  const bool from_outside = failure.fault == Fault::kOutside || failure.fault == Fault::kHeldUp;
  // Another rung would not find more memory, and a rank that spins waits for no bytes.
  const bool of_rung = moves_bytes(failure.phase) && !from_outside &&
                       failure.fault != Fault::kOutOfMemory && failure.fault != Fault::kSpinning &&
                       failure.fault != Fault::kShortage;
  if (!of_rung) return Next::kSameRung;
  return ++rung_failures_ < 2 ? Next::kSameRung : Next::kNextRung;
}

}  // namespace shoal
