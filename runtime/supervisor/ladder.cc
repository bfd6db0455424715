#include "runtime/supervisor/ladder.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/supervisor/trial.h"

namespace shoal {
namespace {

/// Phases before a rank is there: here a rung that needs shared memory is refused for want of it.
bool before_ranks(const std::string& phase) {
  return phase == "budget" || phase == "probe" || phase == "reserve";
}

}  // namespace

Ladder::Ladder(LadderOptions options, HostFacts facts, int world_size) : options_(std::move(options)) {
  report_.world_size = world_size;
  report_.order = options_.order;
  report_.headroom_bytes = options_.budget.headroom_bytes;
  report_.facts = std::move(facts);
  if (world_size == 1) {
    report_.order = {kNoTransport};
    return;
  }
  for (const std::string& name : report_.order) report_.needs.push_back(find_rung(name)->need(world_size));
}

/// Everything that can be said before a process is started; fills in the setup.
Status Ladder::consider(const Rung& rung, const ShmNeed& need, TransportSetup* setup, std::string* phase) {
  *phase = "budget";
  SHOAL_RETURN_IF_ERROR(check_budget(need, report_.facts, options_.budget));
  *phase = "probe";
  SHOAL_RETURN_IF_ERROR(rung.probe(report_.facts));
  if (near_memory_limit(need, report_.facts, options_.budget)) SHOAL_RETURN_IF_ERROR(try_in_disposable_process(need));
  *phase = "reserve";
  SHOAL_ASSIGN_OR_RETURN(*setup, rung.prepare(report_.world_size, report_.facts));
  return {};
}

/// Records why the current rung is not taken and steps down. Not ok: the policy forbids to.
Status Ladder::refuse(const ShmNeed& need, const std::string& phase, const Status& why) {
  const std::string rung = report_.order[at_];
  const bool shortage = before_ranks(phase) && need.memory_bytes() > 0;
  report_.refusals.push_back({rung, phase, shortage, why});
  find_remedies();
  const bool last_allowed = rung == options_.min_transport;
  ++at_;
  if (shortage && !options_.degrade_on_shm_shortage) {
    return no_rung_left("--on-shm-shortage=fail forbids to go on");
  }
  if (last_allowed) return no_rung_left("--min-transport forbids to go on");
  if (at_ >= report_.order.size()) return no_rung_left(nullptr);
  log_warning(cat("transport ", rung, " refused (", phase, "), trying ", report_.order[at_], ": ", why.to_string(600)));
  return {};
}

/// One error from all refusals, the first one's reasons first.
Status Ladder::no_rung_left(const char* why) {
  report_.rung.clear();
  std::string tried;
  for (const Refusal& refusal : report_.refusals) tried += cat(tried.empty() ? "" : ", ", refusal.rung);
  std::string what = cat("no transport works for ", report_.world_size, " ranks (tried ", tried, ")");
  if (why != nullptr) what += cat("; ", why);
  if (!report_.remedies.empty()) what += "; shoal doctor prints a remedy to paste";
  std::vector<Cause> causes = Status::error(Code::kUnavailable, std::move(what)).causes();
  for (const Refusal& refusal : report_.refusals) {
    const Status named = refusal.status.while_doing(cat("transport ", refusal.rung, ", ", refusal.phase));
    causes.insert(causes.end(), named.causes().begin(), named.causes().end());
  }
  return Status(std::move(causes));
}

Result<std::unique_ptr<WorkerGroup>> Ladder::start(WorkerGroupOptions options, GroupFailure* failure) {
  *failure = {};
  const Clock::time_point began = Clock::now();
  if (report_.world_size == 1) {
    TransportSetup none;
    none.rung = kNoTransport;
    options.init.start_number = starts_++;
    SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<WorkerGroup> group, WorkerGroup::start(options, none, failure));
    report_.rung = kNoTransport;
    return group;
  }
  while (at_ < report_.order.size()) {
    const Rung& rung = *find_rung(report_.order[at_]);
    const ShmNeed& need = report_.needs[at_];
    TransportSetup setup;
    std::string phase;
    if (const Status why = consider(rung, need, &setup, &phase); !why.ok()) {
      SHOAL_RETURN_IF_ERROR(refuse(need, phase, why));
      continue;
    }
    options.init.start_number = starts_++;
    Result<std::unique_ptr<WorkerGroup>> group = WorkerGroup::start(options, setup, failure);
    if (group.ok()) {
      report_.rung = rung.name;
      const TransportVerified& figures = (*group)->verified();
      report_.latency_us = figures.latency_us;
      report_.bytes_per_s = figures.bytes_per_s;
      report_.verified_s = seconds_since(began);
      return group;
    }
    if (!failure->moving) return group.status();
    SHOAL_RETURN_IF_ERROR(refuse(need, failure->phase, group.status()));
  }
  return no_rung_left(nullptr);
}

void Ladder::refuse_current(const std::string& phase, const Status& why) {
  if (report_.world_size == 1 || at_ >= report_.order.size()) return;
  // What the policy says to it, the next start() says.
  if (at_ + 1 < report_.order.size() && report_.order[at_] != options_.min_transport) {
    (void)refuse(report_.needs[at_], phase, why);
  }
}

void Ladder::find_remedies() {
  std::vector<Shortage> refused;
  for (const Refusal& refusal : report_.refusals) {
    const auto need = std::find_if(report_.needs.begin(), report_.needs.end(),
                                   [&](const ShmNeed& one) { return one.rung == refusal.rung; });
    if (!before_ranks(refusal.phase) || need == report_.needs.end()) continue;
    refused.push_back({*need, refusal.status, options_.budget.headroom_bytes, options_.budget.reserved_bytes});
  }
  report_.remedies = remedies(report_.facts, refused);
}

}  // namespace shoal
