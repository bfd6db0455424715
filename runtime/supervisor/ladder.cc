#include "runtime/supervisor/ladder.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/supervisor/process_state.h"
#include "runtime/supervisor/refusals.h"
#include "runtime/supervisor/restart_policy.h"
#include "runtime/supervisor/trial.h"
#include "runtime/transport/report_text.h"
#include "runtime/transport/rungs/nccl_rungs.h"

namespace shoal {
namespace {

SelfTestFigures figures_of(const TransportVerified& verified) {
  return {verified.latency_us, verified.bytes_per_s, verified.noisy, verified.seconds};
}

RungContext context_of(const LadderOptions& options, HostFacts facts, int world_size) {
  RungContext context(world_size, std::move(facts));
  context.user = options.nccl;
  context.reproducible = options.reproducible;
  context.budget = options.budget;
  return context;
}

/// Whether ranks lose nothing over this rung instead of the other one.
bool costs_nothing(const std::string& rung, const std::string& other) {
  return as_good(cost_beside(*find_rung(rung), *find_rung(other)));
}

}  // namespace

Ladder::Ladder(LadderOptions options, HostFacts facts, int world_size)
    : options_(std::move(options)), context_(context_of(options_, std::move(facts), world_size)) {
  report_.world_size = world_size;
  report_.order = options_.order;
  report_.order_by = options_.order_by;
  report_.headroom_bytes = options_.budget.headroom_bytes;
  if (!options_.min_transport.empty())  // which says that all rungs up to it are fine
    report_.allowed_by = cat(options_.names.min_transport, " ", options_.min_transport);
  if (world_size == 1) {
    report_.order = {kNoTransport};
    return;
  }
  for (const std::string& name : report_.order) {
    report_.needs.push_back(find_rung(name)->need(context_));
    if (!nccl_rung_transport(name).empty()) report_.nccl.push_back(plan_nccl_use(name, context_));
  }
}

/// A server may run for weeks, so that what was free when it started says nothing about now. The
/// needs of the rungs that are left change with the facts.
void Ladder::look_again() {
  refresh_host_facts(&context_.facts);
  for (size_t i = at_; i < report_.order.size(); ++i) {
    const std::string& name = report_.order[i];
    report_.needs[i] = find_rung(name)->need(context_);
    for (NcclUse& use : report_.nccl) {
      if (use.rung == name) use = plan_nccl_use(name, context_);
    }
  }
}

/// What weights, KV cache and the ranks' own memory take. Once a group has run it is known better
/// than it could be estimated.
BudgetOptions Ladder::budget() const {
  BudgetOptions budget = options_.budget;
  if (used_bytes_ > 0) budget.reserved_bytes = std::min(budget.reserved_bytes, used_bytes_);
  return budget;
}

/// Checks everything that can be checked before a process is started, and makes the setup.
Attempt<TransportSetup> Ladder::consider(const Rung& rung, const ShmNeed& need) {
  phases_.enter(Phase::kBudget);
  if (!pool_.holds(rung.name)) return make_setup(rung, need);
  // The pool's bytes are taken already.
  ShmNeed rest = need;
  rest.dev_shm.clear();
  rest.memory.clear();
  if (const Status why = check_budget(rest, context_.facts, budget()); !why.ok())
    return front_failure(rung, need, Phase::kBudget, why);
  Result<std::optional<ShmSegment>> pool = pool_.take(rung.name);
  if (!pool.ok()) return front_failure(rung, need, Phase::kReserve, pool.status());
  if (!*pool) return make_setup(rung, need);
  TransportSetup setup;
  setup.rung = rung.name;
  setup.shm = std::move(**pool);
  equipment_.equip(rung, context_, nccl_use(), &setup);
  return setup;
}

Attempt<TransportSetup> Ladder::make_setup(const Rung& rung, const ShmNeed& need) {
  const auto failed = [&](Phase phase, const Status& why) {
    return front_failure(rung, need, phase, why);
  };
  // Without a device no memory is of use, so that there the probe comes before the arithmetic.
  if (rung.on_device) {
    phases_.enter(Phase::kProbe);
    if (const Status why = rung.probe(context_); !why.ok()) return failed(Phase::kProbe, why);
  }
  if (const Status why = check_before_reserving(need, context_.facts, budget()); !why.ok())
    return failed(Phase::kBudget, why);
  if (!rung.on_device) {
    phases_.enter(Phase::kProbe);
    if (const Status why = rung.probe(context_); !why.ok()) return failed(Phase::kProbe, why);
  }
  phases_.enter(Phase::kReserve);
  if (near_memory_limit(need, context_.facts, budget())) {
    if (const Status why = try_in_disposable_process(need); !why.ok())
      return failed(Phase::kReserve, why);
  }
  Result<TransportSetup> setup = rung.prepare(context_);
  if (!setup.ok()) return failed(Phase::kReserve, setup.status());
  equipment_.equip(rung, context_, nccl_use(), &*setup);
  return std::move(setup).value();
}

/// The entry of the current rung; nullptr: it is not one of NCCL's rungs.
NcclUse* Ladder::nccl_use() {
  const auto use = std::find_if(report_.nccl.begin(), report_.nccl.end(),
                                [&](const NcclUse& one) { return one.rung == report_.order[at_]; });
  return use == report_.nccl.end() ? nullptr : &*use;
}

TransportReport Ladder::report() const {
  TransportReport report = report_;
  report.facts = context_.facts;
  if (report.verdict() == Verdict::kSlower)
    report.may_work = first_that_may_work(options_.left_out, context_);
  return report;
}

/// Records why the current rung is not taken and steps down. Returns a failure if the policy
/// forbids that.
std::optional<Failure> Ladder::refuse(const Failure& failure) {
  const std::string rung = report_.order[at_];
  report_.refusals.push_back({rung, failure.phase, failure.fault, failure.why});
  find_remedies();
  ++at_;
  if (at_ >= report_.order.size()) return no_rung_left(none_works());
  std::string by;  // all that would have to be left out
  if (failure.fault == Fault::kSharedMemory && !options_.degrade_on_shm_shortage)
    by = options_.names.shm_shortage;
  if (rung == options_.min_transport)
    by += cat(by.empty() ? "" : " and ", options_.names.min_transport, " ", rung);
  return by.empty() ? std::nullopt : std::optional(forbid(by));
}

/// Reports each refusal before number `end` that was not reported yet, with the rung that was tried
/// next. taken: the rung that is proven now; empty: no rung is.
void Ladder::say_refused(size_t end, const std::string& taken) {
  for (const auto& refusals = report_.refusals; options_.on_refused && said_ < end; ++said_) {
    const Refusal& refusal = refusals[said_];
    const std::string& next =
        said_ + 1 < refusals.size() ? refusals[said_ + 1].rung : report_.order[at_];
    options_.on_refused(refusal, next, next == taken && costs_nothing(next, refusal.rung));
  }
}

/// Reports the refusals of a start that has failed, from number `first` on. If the start failed
/// because no rung is left, the last refusal is left out, because no rung was tried after it.
void Ladder::say_refused_in_vain(const Failure& failure, size_t first) {
  const size_t last = of_ladder(failure) ? 1 : 0;
  say_refused(std::max(report_.refusals.size(), first + last) - last, "");
}

/// The policy forbids the rungs that are left. setting: what says so.
Failure Ladder::forbid(const std::string& setting) {
  report_.forbidden_by = setting;
  report_.may_work = first_that_may_work(
      {report_.order.begin() + static_cast<std::ptrdiff_t>(at_), report_.order.end()}, context_);
  return no_rung_left(forbidden_text(report()));
}

/// Makes one error from all refusals, with the reasons of the first one first.
Failure Ladder::no_rung_left(std::string what) {
  report_.rung.clear();
  report_.self_test = {};
  if (!report_.remedies.empty() && !options_.names.remedy_hint.empty())
    what += cat("; ", options_.names.remedy_hint);
  std::vector<Cause> causes = Status::error(Code::kUnavailable, std::move(what)).causes();
  add_reasons(report_.refusals, &causes);
  const Phase phase = report_.refusals.empty() ? Phase::kBudget : report_.refusals.back().phase;
  return {Status(std::move(causes)), phase, kFrontRank, Fault::kPolicy};
}

std::string Ladder::none_works() {
  report_.may_work = first_that_may_work(options_.left_out, context_);
  return cat(none_works_text(report_), " (tried ", refused_names(report_.refusals), ")",
             may_work_text(report_));
}

/// Starts one group over the current rung.
Attempt<std::unique_ptr<WorkerGroup>> Ladder::start_over(TransportSetup setup,
                                                         WorkerGroupOptions options,
                                                         const StartControl& caller) {
  phases_.leave();
  options.start.start_number = starts_++;
  options.start.has_run = has_run_;
  tried_ = setup.rung;
  StartControl control = caller;
  control.on_left_behind = [mark = pool_.on_left_behind(), tell = caller.on_left_behind](
                               int rank, pid_t process) {
    mark();
    if (tell) tell(rank, process);
  };
  control.on_phase_done = [this](Phase phase, double seconds) { say_phase(phase, seconds); };
  control.on_verified = [this](const TransportVerified& figures) { say_verified(figures); };
  say_prepared();
  Attempt<std::unique_ptr<WorkerGroup>> group = WorkerGroup::start(options, setup, control);
  // The pool of a rung that is short of something else stays until this one has worked.
  if (group.ok() || pool_.empty()) pool_.keep(setup.rung, std::move(setup.shm));
  equipment_.keep_logs(&setup);
  const Status as_planned =
      equipment_.compare(nccl_use(), group.ok() ? (*group)->pids() : std::vector<pid_t>());
  if (group.ok() && !as_planned.ok()) {
    // This destroys the group, which ends its ranks.
    group = Failure{as_planned, Phase::kSelfTest, kFrontRank, Fault::kTransport};
  }
  if (!group.ok()) {
    equipment_.remove_left(nccl_use(), context_.facts.dev_shm.path, group.status());
    return group;
  }
  report_.rung = setup.rung;
  report_.self_test = figures_of((*group)->verified());
  return group;
}

/// The phases that the front goes through before it starts ranks are short, so that they are told
/// as one.
void Ladder::say_prepared() const {
  double seconds = 0;
  for (const auto& [phase, in_phase] : phases_.seconds()) seconds += in_phase;
  say_phase(Phase::kProbe, seconds);
}

void Ladder::say_phase(Phase phase, double seconds) const {
  if (options_.on_phase) options_.on_phase(phase, seconds, tried_);
}

/// Said before any weight is loaded, so that the log shows the order of things. What was noted of
/// the last refusal is enough, because this rung is as good.
void Ladder::say_verified(const TransportVerified& figures) {
  if (!has_run_) said_ = report_.refusals.size();
  if (!options_.on_verified) return;
  TransportReport report = report_;
  report.rung = tried_;
  report.self_test = figures_of(figures);
  options_.on_verified(report);
}

/// Why the ranks do not fit the memory limit, beyond which the kernel would kill them, whatever
/// they exchange data over; nullopt: they fit. Sets the remedies of the report.
std::optional<Failure> Ladder::too_little_memory() {
  report_.remedies.clear();
  const std::vector<Shortage> shortages = shortages_of_all(report_, context_.facts, budget());
  if (shortages.empty()) return std::nullopt;
  report_.remedies =
      remedies(context_.facts, report_.world_size, shortages, options_.names.clean_stale);
  const std::string& hint = options_.names.remedy_hint;
  const Status& why = shortages.front().status;
  return Failure{why.because_of(Code::kResourceExhausted,
                                cat("there is too little memory for ", options_.names.work,
                                    hint.empty() || report_.remedies.empty() ? "" : "; ",
                                    report_.remedies.empty() ? "" : hint)),
                 Phase::kBudget, kFrontRank, Fault::kOwn};
}

/// Starts a group of one rank, which has nothing to move.
Attempt<std::unique_ptr<WorkerGroup>> Ladder::start_alone(WorkerGroupOptions options,
                                                          const StartControl& control) {
  if (std::optional<Failure> held = control.held()) return *std::move(held);
  if (starts_ > 0) refresh_host_facts(&context_.facts);
  if (std::optional<Failure> little = too_little_memory())
    return has_run_ ? go_back(*little, report_.refusals.size(), report_.rung) : *std::move(little);
  TransportSetup none;
  none.rung = kNoTransport;
  options.start.start_number = starts_++;
  options.start.has_run = has_run_;
  StartControl told = control;
  told.on_phase_done = [this](Phase phase, double seconds) {
    // One rank has nothing to connect and to prove.
    if (!moves_bytes(phase) || phase == Phase::kWarmUp) say_phase(phase, seconds);
  };
  Attempt<std::unique_ptr<WorkerGroup>> group = WorkerGroup::start(options, none, told);
  if (!group.ok())
    return has_run_ ? go_back(group.failure(), report_.refusals.size(), report_.rung)
                    : group.failure();
  report_.rung = kNoTransport;
  has_run_ = true;
  used_bytes_ = private_bytes((*group)->pids());
  return group;
}

/// Goes down the ladder from the current rung until a group runs.
Attempt<std::unique_ptr<WorkerGroup>> Ladder::climb_down(const WorkerGroupOptions& options,
                                                         const StartControl& control) {
  while (at_ < report_.order.size()) {
    if (std::optional<Failure> held = control.held()) return *std::move(held);
    Attempt<TransportSetup> setup = consider(*find_rung(report_.order[at_]), report_.needs[at_]);
    const bool prepared = setup.ok();
    Attempt<std::unique_ptr<WorkerGroup>> group =
        prepared ? start_over(std::move(setup).value(), options, control)
                 : Attempt<std::unique_ptr<WorkerGroup>>(setup.failure());
    if (group.ok() || !another_rung_may_work(group.failure())) return group;
    const Failure why = group.failure();
    // The next rung may need the room. But a rung that has worked may be taken again.
    if (!has_run_ || !is_shortage(why.fault, why.why)) pool_.give_back();
    if (std::optional<Failure> forbidden = refuse(why)) return *forbidden;
    // A note is enough if the next rung is as good and works. Otherwise a warning follows.
    const bool as_good = costs_nothing(report_.order[at_], report_.refusals.back().rung);
    if (!has_run_) say_refused(report_.refusals.size() - (as_good ? 1 : 0), "");
    if (prepared && control.deadline.passed())
      return no_rung_left(
          cat(none_works(), "; ", options_.names.startup_timeout, " leaves no time for another"));
    if (!has_run_ && as_good && options_.on_refused)
      options_.on_refused(report_.refusals.back(), report_.order[at_], true);
  }
  return no_rung_left(none_works());
}

/// After a restart that has failed: returns to the first rung that was refused in it for a
/// shortage. That shortage is then the failure, because the rungs behind it are only a way around
/// it.
Failure Ladder::go_back(const Failure& failure, size_t first_refusal, const std::string& rung) {
  std::vector<Refusal>& refusals = report_.refusals;
  const auto short_of =
      std::find_if(refusals.begin() + static_cast<std::ptrdiff_t>(first_refusal), refusals.end(),
                   [](const Refusal& one) { return is_shortage(one.fault, one.status); });
  Failure outcome = failure;
  if (is_shortage(failure.fault, failure.why)) outcome.fault = Fault::kShortage;
  if (short_of == refusals.end()) {
    say_refused_in_vain(failure, first_refusal);
    return outcome;
  }
  report_.rung = rung;
  if (of_ladder(failure) || restart_may_cure(failure.fault))
    outcome = {all_reasons({short_of, refusals.end()}, failure), short_of->phase, kFrontRank,
               Fault::kShortage};
  for (at_ = 0; report_.order[at_] != short_of->rung;) ++at_;
  refusals.erase(short_of, refusals.end());
  find_remedies();
  say_refused(refusals.size(), "");
  return outcome;
}

Attempt<std::unique_ptr<WorkerGroup>> Ladder::start(WorkerGroupOptions options,
                                                    const StartControl& caller) {
  phases_ = {};
  StartControl control = caller;
  control.deadline = sooner(caller.deadline, Deadline::after_s(options.startup_timeout_s));
  if (report_.world_size == 1) return start_alone(std::move(options), control);
  if (starts_ > 0) look_again();
  if (starts_ == 0)
    if (std::optional<Failure> little = too_little_memory()) return *std::move(little);
  const size_t first_refusal = report_.refusals.size();
  const std::string rung = report_.rung;
  Attempt<std::unique_ptr<WorkerGroup>> group = climb_down(options, control);
  if (group.ok()) {
    say_refused(report_.refusals.size(), report_.rung);
    has_run_ = true;
    used_bytes_ = private_bytes((*group)->pids());
    return group;
  }
  if (has_run_) return go_back(group.failure(), first_refusal, rung);
  say_refused_in_vain(group.failure(), first_refusal);
  return group;
}

std::optional<Failure> Ladder::refuse_current(const Failure& failure) {
  if (report_.world_size == 1 || at_ >= report_.order.size()) return std::nullopt;
  (void)equipment_.compare(nccl_use(), {});
  // The rung is kept in two cases. It is the last permitted one, and it has worked before. Or it
  // was another rung that failed, which was tried because this one is short of something.
  if ((!tried_.empty() && tried_ != report_.order[at_]) || at_ + 1 == report_.order.size() ||
      report_.order[at_] == options_.min_transport)
    return std::nullopt;
  pool_.give_back();
  const std::optional<Failure> forbidden = refuse(failure);
  if (!forbidden) say_refused(report_.refusals.size(), "");
  return forbidden;
}

void Ladder::find_remedies() {
  std::vector<Shortage> refused;
  for (const Refusal& refusal : report_.refusals) {
    const auto need = std::find_if(report_.needs.begin(), report_.needs.end(),
                                   [&](const ShmNeed& one) { return one.rung == refusal.rung; });
    if (refusal.phase >= Phase::kSpawn || need == report_.needs.end()) continue;
    if (find_rung(refusal.rung)->on_device && !refusal.shared_memory()) continue;
    refused.push_back(
        {*need, refusal.status, options_.budget.headroom_bytes, options_.budget.reserved_bytes});
  }
  report_.remedies =
      remedies(context_.facts, report_.world_size, refused, options_.names.clean_stale);
}

}  // namespace shoal
