#include "runtime/supervisor/start_watch.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace shoal {
namespace {

constexpr double kMostPhaseSeconds = 15;
/// On a cold machine with eight GPUs, contexts and NCCL's kernels take most of a minute to load.
constexpr double kMostDevicePhaseSeconds = 60;

/// The time in which ranks get no processor does not count as silence. A limit holds for it, which
/// is this many times what a phase may take, and at most half of the whole start. A start whose
/// ranks never get a processor then ends, with time left to try another transport.
constexpr double kMostForgiven = 9;

/// A rank that sleeps now and then is hardly ever found running, and one that runs has used some of
/// the processor in this time.
constexpr RunningClock::duration kBetweenLooks = std::chrono::milliseconds(250);

}  // namespace

StartWatch::StartWatch(double startup_timeout_s, double step_timeout_s, DeviceKind device)
    : most_phase_s_(std::min(startup_timeout_s / 4, device == DeviceKind::kCuda
                                                        ? kMostDevicePhaseSeconds
                                                        : kMostPhaseSeconds)),
      step_timeout_s_(step_timeout_s),
      still_forgiven_(
          std::chrono::duration_cast<RunningClock::duration>(std::chrono::duration<double>(
              std::min(kMostForgiven * most_phase_s_, startup_timeout_s / 2)))) {}

double StartWatch::most_silence_s(const RankProcess& rank) const {
  const bool slow = rank.phase == Phase::kLoad || rank.phase == Phase::kTouch || rank.compiles;
  return slow ? std::numeric_limits<double>::infinity() : most_phase_s_;
}

void StartWatch::look(std::vector<RankProcess>& ranks) {
  const RunningClock::time_point now = RunningClock::now();
  const bool any_deadline = std::any_of(
      ranks.begin(), ranks.end(), [this](const RankProcess& r) { return most_silence_s(r) < 1e9; });
  if (!any_deadline) looked_at_.reset();
  if (!any_deadline || (looked_at_ && now - *looked_at_ < kBetweenLooks)) return;
  bool starves = false;
  for (RankProcess& rank : ranks)
    if (rank.look_at_processor() == ProcessorUse::kStarves) starves = true;
  if (starves && looked_at_) {
    // A rank that was not looked at for longer than that may have run meanwhile.
    const RunningClock::duration lost =
        std::min({now - *looked_at_, 2 * kBetweenLooks, still_forgiven_});
    still_forgiven_ -= lost;
    for (RankProcess& rank : ranks) {
      // Another rank's want of a processor is no reason for being stopped.
      if (rank.held_up().empty()) rank.heard_at = std::min(now, rank.heard_at + lost);
    }
  }
  looked_at_ = now;
}

std::optional<double> StartWatch::too_silent(const RankProcess& rank) const {
  const double silent_s = seconds_since(rank.heard_at), most_s = most_silence_s(rank);
  if (silent_s >= most_s) return silent_s;
  // Such a phase may be slow, but a process that is stopped is not slow: it has hung.
  if (most_s > most_phase_s_ && silent_s > step_timeout_s_ && !rank.held_up().empty())
    return step_timeout_s_;
  return std::nullopt;
}

}  // namespace shoal
