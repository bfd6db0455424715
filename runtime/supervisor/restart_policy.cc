#include "runtime/supervisor/restart_policy.h"

namespace shoal {

RestartPolicy::Next RestartPolicy::failed(const GroupFailure& failure, double now_s) {
  if (healthy_since_s_ >= 0 && now_s - healthy_since_s_ >= forget_s_)
    restarts_ = rung_failures_ = 0;
  healthy_since_s_ = -1;
  if (restarts_ >= max_restarts_) return Next::kGiveUp;
  ++restarts_;
  // Before they open their transport and after they have proven it, ranks that start move nothing.
  const bool of_rung = !failure.outside && failure.phase != "spawn" && failure.phase != "load";
  if (!of_rung) return Next::kSameRung;
  if (++rung_failures_ < 2) return Next::kSameRung;
  rung_failures_ = 0;
  return Next::kNextRung;
}

}  // namespace shoal
