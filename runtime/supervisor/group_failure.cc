#include "runtime/supervisor/group_failure.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <signal.h>
#include <string_view>
#include <utility>

#include "runtime/base/last_words.h"
#include "runtime/base/number_text.h"
#include "runtime/supervisor/process_end.h"

namespace shoal {
namespace {

/// Whether the kernel says by this errno that the other end of a connection is gone, or nothing.
bool is_of_a_peer(int os_error) {
  for (const int error : {0, ECONNRESET, EPIPE, ECONNREFUSED, ECONNABORTED, ETIMEDOUT, ESRCH})
    if (os_error == error) return true;
  return false;
}

/// Did this rank only notice that another was gone or silent? A memfd or a socket that the kernel
/// refuses is UNAVAILABLE too, but that is the rank's own reason.
bool secondary(const Status& status) {
  const Cause& root = status.causes().back();
  return (root.code == Code::kUnavailable || root.code == Code::kDeadlineExceeded) &&
         is_of_a_peer(root.os_error);
}

/// Signals that a fault of the program's own raises; any other came from outside.
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
    if (ranks[i].dead() && !ranks[i].failure) return static_cast<int>(i);
    if (!ranks[i].failure) continue;
    const bool better =
        first < 0 || (secondary(ranks[static_cast<size_t>(first)].failure->status) &&
                      !secondary(ranks[i].failure->status));
    if (better) first = static_cast<int>(i);
  }
  return first;
}

/// True if end_dumps killed the rank because writing its core file took too long. The kernel then
/// reports this SIGKILL, and not the signal of the fault.
bool cut_short(const RankProcess& rank) {
  return rank.dumps && (!rank.reaped || rank.exit_status == SIGKILL);
}

std::string end_of(const RankProcess& rank) {
  return cut_short(rank) ? "died of a fault, and its core file took too long and was cut short,"
                         : describe_exit(rank.exit_code, rank.exit_status);
}

/// For a rank that ended without giving a reason.
void explain_death(const RankProcess& rank, const std::string& phase, bool out_of_memory,
                   Failure* failure) {
  std::string what = cat("rank ", failure->rank, " (pid ", rank.process.pid, ") ", end_of(rank),
                         " in phase ", phase, rank.exit_code == CLD_DUMPED ? "; core dumped" : "");
  const bool signalled =
      !cut_short(rank) && (rank.exit_code == CLD_KILLED || rank.exit_code == CLD_DUMPED);
  if (signalled) failure->signal = rank.exit_status;
  const bool killed = signalled && rank.exit_status == SIGKILL;
  if (killed) {
    what += out_of_memory ? "; the kernel does that when memory runs out: see dmesg and the "
                            "container's memory limit"
                          : "; somebody sent it, and not the kernel for lack of memory";
  }
  if (rank.exit_code == CLD_EXITED && rank.exit_status == kOtherBuildExitCode) {
    // The next one would be of that build too.
    failure->why =
        Status::error(Code::kAborted, cat(what, ": it is of another build than this ",
                                          "process, because the program's file was "
                                          "replaced; its last line in the log names both"));
    return;
  }
  if (rank.exit_code == CLD_EXITED && rank.exit_status == kShortageExitCode) {
    failure->fault = Fault::kShortage;
    failure->why = Status::error(Code::kResourceExhausted,
                                 cat(what,
                                     ": memory, a thread or a descriptor was refused; its "
                                     "last line in the log says which"))
                       .blamed_on(failure->fault);
    return;
  }
  if (signalled && !own_fault(rank.exit_status)) {
    failure->fault = killed && out_of_memory ? Fault::kOutOfMemory : Fault::kOutside;
  } else {
    failure->fault = rank.in_transport_phase() ? Fault::kTransport : Fault::kDeath;
  }
  failure->why = Status::error(Code::kAborted, std::move(what)).blamed_on(failure->fault);
}

/// A step's number, and how far a device is in it.
using Place = std::pair<uint64_t, uint64_t>;

Place place_of(const DeviceMark& device) {
  return {device.step, device.mark};
}

/// How far the device of another rank is, beside one at this place. A rank that has said nothing,
/// or waits for nobody, has not come to where devices sum. A rank that waits for others without a
/// device may be waiting for this rank.
Place place_beside(const RankProcess& other, Place place) {
  if (!other.failure) return {};
  const RankWait& wait = other.failure->wait;
  if (wait.device) return place_of(*wait.device);
  return wait.waits_for.empty() ? Place() : place;
}

/// Whom a rank with a failure waits for, as far as anybody knows. A device does not say it, so it
/// is concluded from where the devices are. While a device computes by itself, it waits for nobody.
/// While it sums, it waits for the devices that are not as far. If there are none, it may be
/// waiting for those in the same sum, because something was lost there.
std::vector<int32_t> awaited_by(const RankProcess& rank, const std::vector<RankProcess>& ranks) {
  const RankWait& wait = rank.failure->wait;
  if (!wait.device) return wait.waits_for;
  std::vector<int32_t> behind, beside;
  for (const int32_t peer : wait.waits_for) {
    if (peer < 0 || static_cast<size_t>(peer) >= ranks.size()) continue;
    const Place mine = place_of(*wait.device);
    const Place theirs = place_beside(ranks[static_cast<size_t>(peer)], mine);
    if (theirs < mine) behind.push_back(peer);
    if (theirs == mine) beside.push_back(peer);
  }
  if (!wait.device->sums) return {};
  return behind.empty() ? beside : behind;
}

/// The phase of a rank, as messages name it. A device may still be in an earlier step than the
/// group.
std::string phase_text(const RankProcess& rank, GroupPhase phase) {
  if (rank.failure && rank.failure->wait.device) phase.step = rank.failure->wait.device->step;
  return phase.text_of(phase.of(rank));
}

/// Says in words what a rank is doing or how it ended.
std::string standing(int index, const std::vector<RankProcess>& ranks, const GroupPhase& phase) {
  const RankProcess& rank = ranks[static_cast<size_t>(index)];
  const std::string where = rank.failure ? rank.failure->wait.where : "";
  const std::string who =
      cat("rank ", index, " (", phase_text(rank, phase), where.empty() ? "" : ", ", where);
  if (rank.failure && !rank.failure->wait.what.empty()) {
    const RankWait& wait = rank.failure->wait;
    // The host is mostly ahead of its device, whose place is in `where`.
    const std::string_view which = wait.device ? ", last enqueued: collective " : ", collective ";
    const std::string number = wait.collective > 0 ? cat(which, wait.collective) : "";
    const std::vector<int32_t> awaited = awaited_by(rank, ranks);
    return cat(who, number, ", ", wait.what,
               awaited.empty() ? ") waits for nobody" : ") waits for ", names_of(awaited));
  }
  if (rank.failure) return cat(who, where.empty() ? ") waits in no collective" : ") waits");
  if (rank.reaped) return cat(who, ") ", describe_exit(rank.exit_code, rank.exit_status));
  const std::string held_up = rank.held_up();
  return cat(who, ") ", held_up.empty() ? "does not answer" : held_up, ", last heard of ",
             with_decimals(seconds_since(rank.heard_at), 1), " s ago, state ", rank.state());
}

int root_of_waiting(const std::vector<RankProcess>& ranks, const GroupPhase& phase) {
  int root = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankProcess& rank = ranks[i];
    if (!rank.held_up().empty()) return static_cast<int>(i);
    const bool waits = rank.failure && !awaited_by(rank, ranks).empty();
    const bool done = phase.starting && rank.phase == Phase::kIdle;
    if (!waits && !done && root < 0) root = static_cast<int>(i);
  }
  return root;
}

/// What the ranks but one are doing, each behind a semicolon.
std::string standing_of_others(int one, const std::vector<RankProcess>& ranks,
                               const GroupPhase& phase) {
  std::string who;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    if (i != one) who += cat("; ", standing(i, ranks, phase));
  }
  return who;
}

}  // namespace

bool more_evidence_may_come(const std::vector<RankProcess>& ranks, bool late) {
  const auto died = [](const RankProcess& rank) { return rank.dead() && !rank.failure; };
  const auto gives_reason = [](const RankProcess& rank) {
    return rank.failure && !secondary(rank.failure->status);
  };
  const bool brief = late && std::any_of(ranks.begin(), ranks.end(), gives_reason);
  const auto awaited = [brief](const RankProcess& rank) {
    return !rank.reaped && (rank.failure || !brief) && rank.held_up().empty();
  };
  return std::none_of(ranks.begin(), ranks.end(), died) &&
         std::any_of(ranks.begin(), ranks.end(), awaited);
}

std::string GroupPhase::text_of(Phase one) const {
  return one == Phase::kStep ? cat(phase_name(one), " ", step) : std::string(phase_name(one));
}

Failure explain_failure(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                        bool out_of_memory) {
  Failure failure;
  failure.rank = first_to_fail(ranks);
  phase.note(phase.phase, &failure);
  if (failure.rank < 0) {
    failure.why = Status::error(
        Code::kInternal,
        cat("the group ended in phase ", phase.text_of(phase.phase), " and no rank gave a reason"));
    return failure;
  }
  const RankProcess& rank = ranks[static_cast<size_t>(failure.rank)];
  phase.note(phase.of(rank), &failure);
  const std::string name = phase.text_of(failure.phase);
  if (!rank.failure) {
    explain_death(rank, name, out_of_memory, &failure);
    return failure;
  }
  failure.fault = rank.failure->fault;
  const bool of_model = failure.fault == Fault::kOwn && failure.phase == Phase::kLoad;
  failure.why = rank.failure->status.while_doing(
      of_model ? "the model cannot be loaded"
               : cat("rank ", failure.rank, " failed in phase ", name));
  return failure;
}

Failure explain_silence(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                        double seconds) {
  Failure failure;
  failure.rank = root_of_waiting(ranks, phase);
  phase.note(phase.phase, &failure);
  failure.fault = Fault::kSilence;
  std::string who;
  if (failure.rank >= 0) {
    const RankProcess& root = ranks[static_cast<size_t>(failure.rank)];
    phase.note(phase.of(root), &failure);
    // A rank that starts or loads by itself moves nothing, and neither does a device that computes,
    // so that no other transport would be quicker.
    const bool computes =
        root.failure && root.failure->wait.device && !root.failure->wait.device->sums;
    if (root.moves_bytes() && !computes) failure.fault = Fault::kTransport;
    if (!root.held_up().empty()) failure.fault = Fault::kHeldUp;
    who = cat("; ", standing(failure.rank, ranks, phase));
  }
  who += standing_of_others(failure.rank, ranks, phase);
  failure.why =
      Status::error(Code::kDeadlineExceeded, cat("no answer for ", with_digits(seconds, 3),
                                                 " s in phase ", phase.text_of(failure.phase), who))
          .blamed_on(failure.fault);
  return failure;
}

Failure explain_overrun(const std::vector<RankProcess>& ranks, const GroupPhase& phase,
                        const StepVerdict& verdict) {
  const bool spins = verdict.why == StepVerdict::Why::kSpinning;
  Failure failure;
  failure.rank = verdict.rank;
  phase.note(phase.of(ranks[static_cast<size_t>(verdict.rank)]), &failure);
  failure.fault = spins ? Fault::kSpinning : Fault::kHeldUp;
  std::string what =
      cat("rank ", verdict.rank, " (", phase.text_of(failure.phase),
          ") has completed no part of its work for ", with_digits(verdict.seconds, 3), " s: it ",
          spins ? "spins, and has used " : "computes, but got only ",
          with_digits(verdict.cpu_seconds, 3), " s of processor time");
  failure.why =
      Status::error(Code::kDeadlineExceeded, what + standing_of_others(verdict.rank, ranks, phase))
          .blamed_on(failure.fault);
  return failure;
}

}  // namespace shoal
