#include "runtime/supervisor/rank_process.h"

#include <fstream>
#include <signal.h>

#include "runtime/base/log.h"
#include "runtime/supervisor/process_end.h"

namespace shoal {
namespace {

/// Like kDeathMs, for a process that still works on its end.
constexpr int64_t kMostDeathMs = 30'000;
constexpr int64_t kLookForDeathMs = 100;

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
  if (reaped) return '?';
  std::ifstream file(cat("/proc/", process.pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

void end_ranks(std::vector<RankProcess>& ranks) {
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
    log_warning(cat("rank ", i, " (pid ", rank.process.pid, ", state ", rank.state(),
                    ") hangs in the kernel and cannot be ended: it is left behind"));
  }
}

}  // namespace shoal
