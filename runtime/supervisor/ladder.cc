#include "runtime/supervisor/ladder.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/supervisor/rank_logs.h"
#include "runtime/supervisor/trial.h"
#include "runtime/transport/facts/stale_segments.h"
#include "runtime/transport/rungs/nccl_rungs.h"

namespace shoal {
namespace {

/// Was it refused for want of shared memory? Budget and reservation are about nothing else. A probe
/// is about permissions too, and on devices about nothing but them. In its ranks NCCL takes its
/// own; what a device lacks is memory of its own.
bool for_want_of_memory(const std::string& rung, const std::string& phase, const Status& why) {
  if (phase == "budget" || phase == "reserve") return true;
  if (why.code() != Code::kResourceExhausted) return false;
  const bool on_device = find_rung(rung)->on_device;
  if (phase == "probe") return !on_device;
  return on_device && !why.causes().back().where.starts_with("device/");
}

/// One of those that send NCCL's log to where the front reads it.
bool is_own_log_setting(const SettingOutcome& outcome) {
  return outcome.winner == kSettingIsSet && outcome.name.starts_with("NCCL_DEBUG");
}

RungContext context_of(const LadderOptions& options, HostFacts facts, int world_size) {
  RungContext context(world_size, std::move(facts));
  context.user = options.nccl;
  context.reproducible = options.reproducible;
  context.budget = options.budget;
  return context;
}

}  // namespace

Ladder::Ladder(LadderOptions options, HostFacts facts, int world_size)
    : options_(std::move(options)), context_(context_of(options_, std::move(facts), world_size)) {
  report_.world_size = world_size;
  report_.order = options_.order;
  report_.headroom_bytes = options_.budget.headroom_bytes;
  report_.facts = context_.facts;
  if (world_size == 1) {
    report_.order = {kNoTransport};
    return;
  }
  for (const std::string& name : report_.order) {
    report_.needs.push_back(find_rung(name)->need(context_));
    if (!nccl_rung_transport(name).empty()) report_.nccl.push_back(plan_nccl_use(name, context_));
  }
}

/// A server may run for weeks: what was free when it started says nothing about now. With the facts
/// change the needs of the rungs that are left.
void Ladder::look_again() {
  refresh_host_facts(&context_.facts);
  report_.facts = context_.facts;
  for (size_t i = at_; i < report_.order.size(); ++i) {
    const std::string& name = report_.order[i];
    report_.needs[i] = find_rung(name)->need(context_);
    for (NcclUse& use : report_.nccl) {
      if (use.rung == name) use = plan_nccl_use(name, context_);
    }
  }
}

/// Everything that can be said before a process is started; fills in the setup.
Status Ladder::consider(const Rung& rung, const ShmNeed& need, TransportSetup* setup,
                        std::string* phase) {
  *phase = "probe";
  if (rung.on_device)
    SHOAL_RETURN_IF_ERROR(rung.probe(context_));  // without a device no memory is of use
  *phase = "budget";
  SHOAL_RETURN_IF_ERROR(check_budget(need, report_.facts, options_.budget));
  *phase = "probe";
  if (!rung.on_device) SHOAL_RETURN_IF_ERROR(rung.probe(context_));
  *phase = "reserve";
  if (near_memory_limit(need, report_.facts, options_.budget))
    SHOAL_RETURN_IF_ERROR(try_in_disposable_process(need));
  SHOAL_ASSIGN_OR_RETURN(*setup, rung.prepare(context_));
  equip(rung, setup);
  return {};
}

/// Of the current rung; nullptr: no rung of NCCL's.
NcclUse* Ladder::nccl_use() {
  const auto use = std::find_if(report_.nccl.begin(), report_.nccl.end(),
                                [&](const NcclUse& one) { return one.rung == report_.order[at_]; });
  return use == report_.nccl.end() ? nullptr : &*use;
}

/// Memory for NCCL's log, unless the user keeps it. It only tells what happened: a rung does
/// without.
std::vector<Fd> Ladder::make_logs() {
  NcclUse* use = nccl_use();
  if (use == nullptr || !use->logged) return {};
  Result<std::vector<Fd>> logs = make_rank_logs(report_.world_size);
  if (logs.ok()) return std::move(logs).value();
  log_warning(cat("NCCL's log is not kept: ", logs.status().to_string()));
  use->logged = false;
  std::erase_if(use->settings, is_own_log_setting);
  return {};
}

/// What the ranks are born with beside the transport: environment, and memory for NCCL's log.
void Ladder::equip(const Rung& rung, TransportSetup* setup) {
  logs_.clear();
  if (rung.environment == nullptr) return;
  setup->logs = make_logs();
  for (int rank = 0; rank < report_.world_size; ++rank) {
    std::vector<std::string> variables;
    for (const SettingOutcome& outcome : settle(rung.environment(context_, rank), context_.user)) {
      if (outcome.winner != kSettingIsSet || (setup->logs.empty() && is_own_log_setting(outcome)))
        continue;
      variables.push_back(cat(outcome.name, "=", outcome.value));
    }
    setup->environment.push_back(std::move(variables));
  }
}

/// A failed NCCL leaves files that none of its processes holds: its words name them.
void Ladder::remove_left_segments(const Status& failed) const {
  if (nccl_rung_transport(report_.order[at_]).empty()) return;
  std::string words = failed.to_string();
  for (const std::string& log : read_rank_logs(logs_)) words += log;
  const SweepResult swept = remove_named_in(report_.facts.dev_shm.path, words);
  if (swept.removed > 0)
    log_info(cat("removed ", swept.removed, " files that a failed NCCL had left in /dev/shm"));
}

/// Takes what the ranks of the current rung have logged into the report. Not ok: the rung is not
/// what it says.
Status Ladder::look_at_logs() {
  NcclUse* use = nccl_use();
  if (use == nullptr) return {};
  add_nccl_logs(read_rank_logs(logs_), use);
  return check_nccl_use(*use);
}

/// Records why the current rung is not taken and steps down. Not ok: the policy forbids to.
Status Ladder::refuse(const ShmNeed& need, const std::string& phase, const Status& why) {
  const std::string rung = report_.order[at_];
  const bool shortage = for_want_of_memory(rung, phase, why) && need.memory_bytes() > 0;
  report_.refusals.push_back({rung, phase, shortage, why});
  find_remedies();
  const bool last_allowed = rung == options_.min_transport;
  ++at_;
  if (shortage && !options_.degrade_on_shm_shortage) {
    return no_rung_left("--on-shm-shortage=fail forbids to go on");
  }
  if (last_allowed) return no_rung_left("--min-transport forbids to go on");
  if (at_ >= report_.order.size()) return no_rung_left(nullptr);
  log_warning(cat("transport ", rung, " refused (", phase, "), trying ", report_.order[at_], ": ",
                  why.to_string(600)));
  return {};
}

/// One error from all refusals, the first one's reasons first.
Status Ladder::no_rung_left(const char* why) {
  report_.rung.clear();
  std::string tried;
  for (const Refusal& refusal : report_.refusals)
    tried += cat(tried.empty() ? "" : ", ", refusal.rung);
  std::string what =
      cat("no transport works for ", report_.world_size, " ranks (tried ", tried, ")");
  if (why != nullptr) what += cat("; ", why);
  if (!report_.remedies.empty()) what += "; shoal doctor prints a remedy to paste";
  std::vector<Cause> causes = Status::error(Code::kUnavailable, std::move(what)).causes();
  for (const Refusal& refusal : report_.refusals) {
    const Status named =
        refusal.status.while_doing(cat("transport ", refusal.rung, ", ", refusal.phase));
    causes.insert(causes.end(), named.causes().begin(), named.causes().end());
  }
  return Status(std::move(causes));
}

/// One group over the current rung.
Result<std::unique_ptr<WorkerGroup>> Ladder::start_over(TransportSetup setup,
                                                        WorkerGroupOptions options,
                                                        GroupFailure* failure) {
  options.init.start_number = starts_++;
  Result<std::unique_ptr<WorkerGroup>> group = WorkerGroup::start(options, setup, failure);
  logs_ = std::move(setup.logs);
  const Status as_planned = look_at_logs();
  if (group.ok() && !as_planned.ok()) {
    group = as_planned;  // its ranks are ended
    *failure = {as_planned, -1, "self-test", false, true};
  }
  if (!group.ok()) {
    remove_left_segments(group.status());
    return group;
  }
  report_.rung = setup.rung;
  const TransportVerified& figures = (*group)->verified();
  report_.latency_us = figures.latency_us;
  report_.bytes_per_s = figures.bytes_per_s;
  return group;
}

Result<std::unique_ptr<WorkerGroup>> Ladder::start(WorkerGroupOptions options,
                                                   GroupFailure* failure) {
  *failure = {};
  const Clock::time_point began = Clock::now();
  options.start_deadline =
      sooner(options.start_deadline, Deadline::after_s(options.startup_timeout_s));
  if (report_.world_size == 1) {
    TransportSetup none;
    none.rung = kNoTransport;
    options.init.start_number = starts_++;
    Result<std::unique_ptr<WorkerGroup>> group = WorkerGroup::start(options, none, failure);
    if (group.ok()) report_.rung = kNoTransport;
    return group;
  }
  if (starts_ > 0) look_again();
  while (at_ < report_.order.size()) {
    const Rung& rung = *find_rung(report_.order[at_]);
    const ShmNeed& need = report_.needs[at_];
    TransportSetup setup;
    std::string phase;
    if (const Status why = consider(rung, need, &setup, &phase); !why.ok()) {
      SHOAL_RETURN_IF_ERROR(refuse(need, phase, why));
      continue;
    }
    Result<std::unique_ptr<WorkerGroup>> group = start_over(std::move(setup), options, failure);
    if (group.ok()) {
      report_.verified_s = seconds_since(began);
      return group;
    }
    if (!failure->moving) return group.status();
    SHOAL_RETURN_IF_ERROR(refuse(need, failure->phase, group.status()));
    if (options.start_deadline.passed())
      return no_rung_left("--startup-timeout leaves no time for another");
  }
  return no_rung_left(nullptr);
}

Status Ladder::refuse_current(const std::string& phase, const Status& why) {
  if (report_.world_size == 1 || at_ >= report_.order.size()) return {};
  (void)look_at_logs();
  // The last one that may be used has worked, and is not given up.
  if (at_ + 1 == report_.order.size() || report_.order[at_] == options_.min_transport) return {};
  return refuse(report_.needs[at_], phase, why);
}

void Ladder::find_remedies() {
  std::vector<Shortage> refused;
  for (const Refusal& refusal : report_.refusals) {
    const auto need = std::find_if(report_.needs.begin(), report_.needs.end(),
                                   [&](const ShmNeed& one) { return one.rung == refusal.rung; });
    const bool early =
        refusal.phase == "budget" || refusal.phase == "probe" || refusal.phase == "reserve";
    if (!early || need == report_.needs.end()) continue;
    if (find_rung(refusal.rung)->on_device && !refusal.shared_memory) continue;
    refused.push_back(
        {*need, refusal.status, options_.budget.headroom_bytes, options_.budget.reserved_bytes});
  }
  report_.remedies = remedies(report_.facts, refused);
}

}  // namespace shoal
