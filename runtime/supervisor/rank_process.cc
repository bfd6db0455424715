#include "runtime/supervisor/rank_process.h"

#include <algorithm>
#include <signal.h>

#include "runtime/base/log.h"
#include "runtime/supervisor/process_end.h"
#include "runtime/supervisor/process_state.h"

namespace shoal {
namespace {

/// Like kDeathMs, for a process that still works on its end.
constexpr int64_t kMostDeathMs = 30'000;
constexpr int64_t kLookForDeathMs = 100;
/// How long a core file may take. The streams wait for it.
constexpr int64_t kMostDumpMs = 2'000;
/// How often to look for the end of a rank that has no pidfd.
constexpr int kUnwatchedMs = 10;
/// A rank that sleeps uses less of the processor than this between two looks.
constexpr std::chrono::milliseconds kRuns{1};

}  // namespace

bool RankProcess::reap(Deadline deadline) {
  if (reaped) return false;
  const std::optional<ProcessEnd> end = await_end(process.pid, process.pidfd, deadline);
  if (!end) return false;
  reaped = true;
  exit_code = end->code;
  exit_status = end->status;
  return true;
}

char RankProcess::state() const {
  return reaped ? '?' : process_state(process.pid);
}

std::string RankProcess::held_up() const {
  if (reaped) return "";
  if (is_stopped(process.pid)) return "is stopped by a signal";
  return is_frozen(process.pid) ? "is frozen with its cgroup" : "";
}

ProcessorUse RankProcess::look_at_processor() {
  const std::chrono::nanoseconds before = cpu_seen;
  const auto used = reaped ? std::nullopt : processor_time(process.pid);
  cpu_seen = used.value_or(before);
  // If the processor time of the rank cannot be read, nobody knows whether it starves.
  if (!used || !held_up().empty()) return ProcessorUse::kNone;
  if (cpu_seen - before >= kRuns) return ProcessorUse::kSome;
  return uses_processor(process.pid) ? ProcessorUse::kStarves : ProcessorUse::kNone;
}

PhaseSeconds slowest_phases(const std::vector<RankProcess>& ranks) {
  PhaseSeconds slowest;
  for (const RankProcess& rank : ranks) {
    for (const auto& [phase, seconds] : rank.phases.seconds())
      slowest[phase] = std::max(slowest[phase], seconds);
  }
  return slowest;
}

std::vector<double> collective_seconds(const std::vector<RankProcess>& ranks) {
  std::vector<double> seconds;
  for (const RankProcess& rank : ranks) seconds.push_back(rank.collective_s);
  return seconds;
}

std::optional<GroupWaits> group_waits(const std::vector<RankProcess>& ranks) {
  std::vector<RankWaits> waits;
  for (const RankProcess& rank : ranks) waits.push_back(rank.step_waits);
  return group_waits(waits);
}

int poll_ms(const std::vector<RankProcess>& ranks, Deadline deadline) {
  const bool unwatched = std::any_of(ranks.begin(), ranks.end(),
                                     [](const RankProcess& rank) { return rank.unwatched(); });
  return unwatched ? deadline.remaining_ms(kUnwatchedMs) : deadline.remaining_ms();
}

bool end_dumps(std::vector<RankProcess>& ranks) {
  bool found = false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    RankProcess& rank = ranks[i];
    if (rank.dead() || !dumps_core(rank.process.pid)) continue;
    found = rank.dumps = true;
    log_warning(cat("rank ", i, " (pid ", rank.process.pid,
                    ") has died and writes a core file, for which it has ", kMostDumpMs, " ms"),
                {{"event", "rank_dumps"},
                 {"lost_rank", static_cast<int64_t>(i)},
                 {"lost_pid", rank.process.pid},
                 {"limit_ms", kMostDumpMs}});
  }
  const Deadline whole = Deadline::after_ms(kMostDumpMs);
  for (RankProcess& rank : ranks) {
    if (!found || !rank.dumps || rank.reaped || rank.reap(whole)) continue;
    ::kill(rank.process.pid, SIGKILL);
    rank.reap(Deadline::after_ms(kDeathMs));
  }
  return found;
}

std::vector<pid_t> pids_of_living(const std::vector<RankProcess>& ranks) {
  std::vector<pid_t> pids;
  for (const RankProcess& rank : ranks)
    if (!rank.reaped) pids.push_back(rank.process.pid);
  return pids;
}

void end_ranks(std::vector<RankProcess>& ranks,
               const std::function<void(int rank, pid_t process)>& on_left_behind) {
  for (const RankProcess& rank : ranks) {
    if (!rank.reaped) ::kill(rank.process.pid, SIGKILL);  // ends stopped processes too
  }
  const Deadline soon = Deadline::after_ms(kDeathMs), last = Deadline::after_ms(kMostDeathMs);
  for (size_t i = 0; i < ranks.size(); ++i) {
    RankProcess& rank = ranks[i];
    if (rank.reaped || rank.left_behind) continue;
    bool ended = rank.reap(soon);
    // Gigabytes take a while to be given back, and the next start needs them.
    while (!ended && !last.passed() && uses_processor(rank.process.pid))
      ended = rank.reap(Deadline::after_ms(kLookForDeathMs));
    if (ended) continue;
    rank.left_behind = true;
    const std::string held_up = rank.held_up();
    log_warning(cat("rank ", i, " (pid ", rank.process.pid, ", state ", rank.state(), ") ",
                    held_up.empty() ? "hangs in the kernel" : held_up,
                    " and cannot be ended: it is left behind"),
                {{"event", "rank_left_behind"},
                 {"lost_rank", static_cast<int64_t>(i)},
                 {"lost_pid", rank.process.pid}});
    if (on_left_behind) on_left_behind(static_cast<int>(i), rank.process.pid);
  }
}

}  // namespace shoal
