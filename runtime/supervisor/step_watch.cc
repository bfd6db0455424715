#include "runtime/supervisor/step_watch.h"

#include <algorithm>

namespace shoal {
namespace {

/// A long part may take this many time-outs.
constexpr double kMostTimeouts = 10;

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// Looks at what the rank has used of the processor. Returns true if it computes: it waits for
/// nobody, and has used some since the last look or would if it got any. One that waits polls or
/// sleeps. If it does neither, it gets no processor on which to see that its wait is over.
bool computes(RankProcess& rank) {
  const ProcessorUse use = rank.look_at_processor();
  return use == ProcessorUse::kStarves || (use == ProcessorUse::kSome && !rank.waits);
}

}  // namespace

void StepWatch::moved() {
  moved_at_ = RunningClock::now();
  looks_ = 0;
  next_ = Deadline::after_s(timeout_s_ / 2);
}

std::optional<StepVerdict> StepWatch::judge(std::vector<RankProcess>& ranks) {
  // The rank that has used the processor most since the first look is the one that computes.
  int busiest = -1;
  std::chrono::nanoseconds most{-1};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool busy = computes(ranks[i]);
    if (looks_ == 0) ranks[i].cpu_at_first_look = ranks[i].cpu_seen;
    const std::chrono::nanoseconds used = ranks[i].cpu_seen - ranks[i].cpu_at_first_look;
    if (!busy || used <= most) continue;
    busiest = static_cast<int>(i);
    most = used;
  }
  const double silent_s = seconds_since(moved_at_);
  const bool first = looks_++ == 0, second = looks_ == 2;
  if (!first && busiest < 0) {
    // The time-out itself says more than when it was noticed.
    return StepVerdict{StepVerdict::Why::kSilent, second ? timeout_s_ : silent_s, -1, 0};
  }
  if (!first && silent_s >= kMostTimeouts * timeout_s_) {
    const double used_s = seconds(most);
    // A part of a layer that has used a whole time-out of processor time and has not ended must be
    // spinning.
    const auto why =
        used_s >= timeout_s_ ? StepVerdict::Why::kSpinning : StepVerdict::Why::kStarved;
    return StepVerdict{why, silent_s, busiest, used_s};
  }
  const double left_s = kMostTimeouts * timeout_s_ - silent_s;
  next_ = Deadline::after_s(std::clamp(left_s, timeout_s_ / 4, timeout_s_ / 2));
  return std::nullopt;
}

}  // namespace shoal
