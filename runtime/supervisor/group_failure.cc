#include "runtime/supervisor/group_failure.h"

#include <cstdio>
#include <signal.h>

#include "runtime/supervisor/process_end.h"

namespace shoal {
namespace {

/// Did this rank only notice that another was gone or silent?
bool secondary(const Status& status) {
  const Code root = status.causes().back().code;
  return root == Code::kUnavailable || root == Code::kDeadlineExceeded;
}

/// Of a status: was its root noticed where bytes are moved?
bool moves_bytes(const Status& status) {
  const std::string& where = status.causes().back().where;
  return where.starts_with("memory/") || where.starts_with("device/") ||
         where.starts_with("comm/") || where.starts_with("transport/");
}

/// Signals that a fault of the program's own raises; any other came from outside (the kernel's
/// out-of-memory killer counts as outside: another transport would not cure it).
bool own_fault(int signal) {
  for (const int fault : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGSYS, SIGTRAP}) {
    if (signal == fault) return true;
  }
  return false;
}

std::string names_of(const std::vector<int32_t>& ranks) {
  std::string names;
  for (const int32_t rank : ranks)
    names += cat(names.empty() ? (ranks.size() == 1 ? "rank " : "ranks ") : ", ", rank);
  return names;
}

int first_to_fail(const std::vector<RankProcess>& ranks) {
  int first = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].reaped && !ranks[i].failure) return static_cast<int>(i);
    if (!ranks[i].failure) continue;
    const bool better =
        first < 0 || (secondary(ranks[static_cast<size_t>(first)].failure->status) &&
                      !secondary(ranks[i].failure->status));
    if (better) first = static_cast<int>(i);
  }
  return first;
}

/// It ended without a word.
void explain_death(const RankProcess& rank, GroupFailure* failure) {
  std::string what =
      cat("rank ", failure->rank, " (pid ", rank.process.pid, ") ",
          describe_exit(rank.exit_code, rank.exit_status), " in phase ", failure->phase);
  const bool signalled = rank.exit_code == CLD_KILLED || rank.exit_code == CLD_DUMPED;
  if (signalled && rank.exit_status == SIGKILL) {
    what +=
        "; the kernel does that too when memory runs out: see dmesg and the container's memory limit";
  }
  failure->outside = signalled && !own_fault(rank.exit_status);
  failure->moving = !failure->outside && rank.in_transport_phase();
  failure->status = Status::error(Code::kAborted, std::move(what));
}

/// Where a rank stands, in words.
std::string standing(int index, const RankProcess& rank, const GroupPhase& phase) {
  const std::string who = cat("rank ", index, " (", phase.of(rank));
  if (rank.failure && rank.failure->wait.collective > 0) {
    const RankWait& wait = rank.failure->wait;
    return cat(who, ", collective ", wait.collective, ", ", wait.what,
               wait.waits_for.empty() ? ") waits for nobody" : ") waits for ",
               names_of(wait.waits_for));
  }
  if (rank.failure) return cat(who, ") waits in no collective");
  if (rank.reaped) return cat(who, ") ", describe_exit(rank.exit_code, rank.exit_status));
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", seconds_since(rank.heard_at));
  return cat(who, rank.stopped() ? ") is stopped by a signal" : ") does not answer",
             ", last heard of ", seconds, " s ago, state ", rank.state());
}

int root_of_waiting(const std::vector<RankProcess>& ranks, const GroupPhase& phase) {
  int root = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankProcess& rank = ranks[i];
    if (rank.stopped()) return static_cast<int>(i);
    const bool waits = rank.failure && !rank.failure->wait.waits_for.empty();
    const bool done = phase.starting && rank.phase == WorkerPhase::kServe;
    if (!waits && !done && root < 0) root = static_cast<int>(i);
  }
  return root;
}

}  // namespace

GroupFailure explain_failure(const std::vector<RankProcess>& ranks, const GroupPhase& phase) {
  GroupFailure failure;
  failure.rank = first_to_fail(ranks);
  failure.phase = phase.name;
  if (failure.rank < 0) {
    failure.status = Status::error(
        Code::kInternal, cat("the group ended in phase ", phase.name, " without a reason"));
    return failure;
  }
  const RankProcess& rank = ranks[static_cast<size_t>(failure.rank)];
  failure.phase = phase.of(rank);
  if (!rank.failure) {
    explain_death(rank, &failure);
    return failure;
  }
  failure.status = rank.failure->status.while_doing(
      cat("rank ", failure.rank, " failed in phase ", failure.phase));
  failure.moving = moves_bytes(rank.failure->status) || rank.in_transport_phase();
  return failure;
}

GroupFailure explain_silence(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                             double seconds) {
  GroupFailure failure;
  failure.rank = root_of_waiting(ranks, phase);
  failure.phase = phase.name;
  char limit[32];
  std::snprintf(limit, sizeof limit, "%.3g", seconds);
  std::string who;
  if (failure.rank >= 0) {
    const RankProcess& root = ranks[static_cast<size_t>(failure.rank)];
    failure.outside = root.stopped();
    failure.phase = phase.of(root);
    failure.moving =
        !failure.outside && root.phase != WorkerPhase::kSpawn && root.phase != WorkerPhase::kLoad;
    who = cat("; ", standing(failure.rank, root, phase));
  }
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    if (i != failure.rank) who += cat("; ", standing(i, ranks[static_cast<size_t>(i)], phase));
  }
  failure.status = Status::error(Code::kDeadlineExceeded,
                                 cat("no answer for ", limit, " s in phase ", failure.phase, who));
  return failure;
}

}  // namespace shoal
