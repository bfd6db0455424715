#include "runtime/supervisor/phase_news.h"

#include <algorithm>

namespace shoal {
namespace {

Phase after(Phase phase) {
  return static_cast<Phase>(static_cast<int>(phase) + 1);
}

}  // namespace

bool PhaseNews::has_left(const RankProcess& rank, Phase phase) const {
  // Without work, the self-test is the last phase of a start.
  return rank.phase > phase || (transport_only_ && rank.verified.has_value());
}

void PhaseNews::tell(const std::vector<RankProcess>& ranks, const StartControl& control) {
  for (; next_ <= Phase::kWarmUp; next_ = after(next_), since_ = Clock::now()) {
    const Phase phase = next_;
    if (!std::all_of(ranks.begin(), ranks.end(),
                     [&](const RankProcess& rank) { return has_left(rank, phase); })) {
      if (control.on_phase_now) control.on_phase_now(phase, seconds_since(since_));
      return;
    }
    PhaseSeconds seconds = slowest_phases(ranks);
    if (phase == Phase::kSelfTest && transport_only_)
      seconds[phase] = ranks.front().verified->seconds;
    if (control.on_phase_done && seconds.contains(phase))
      control.on_phase_done(phase, seconds[phase]);
    if (control.on_verified && phase == Phase::kSelfTest && ranks.front().verified)
      control.on_verified(*ranks.front().verified);
  }
}

}  // namespace shoal
