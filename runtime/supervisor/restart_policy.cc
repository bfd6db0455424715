#include "runtime/supervisor/restart_policy.h"

namespace shoal {

RestartPolicy::Next RestartPolicy::failed(const Failure& failure, double now_s) {
  if (healthy_since_s_ >= 0 && now_s - healthy_since_s_ >= forget_s_)
    restarts_ = rung_failures_ = 0;
  healthy_since_s_ = -1;
  if (restarts_ >= max_restarts_) return Next::kGiveUp;
  ++restarts_;
  // Ranks that start move no bytes before they open their transport and after they have proven it.
  const bool of_rung = moves_bytes(failure.phase) && failure.fault != Fault::kOutside;
  if (!of_rung) return Next::kSameRung;
  if (++rung_failures_ < 2) return Next::kSameRung;
  rung_failures_ = 0;
  return Next::kNextRung;
}

}  // namespace shoal
