#include "runtime/supervisor/refusals.h"

#include <sys/sysinfo.h>
#include <utility>

namespace shoal {

Failure front_failure(const Rung& rung, const ShmNeed& need, Phase phase, const Status& why) {
  const bool no_memory = phase == Phase::kBudget || phase == Phase::kReserve ||
                         (why.code() == Code::kResourceExhausted && !rung.on_device);
  return {why, phase, kFrontRank,
          no_memory && need.memory_bytes() > 0 ? Fault::kSharedMemory : Fault::kTransport};
}

bool another_rung_may_work(const Failure& failure) {
  return failure.fault == Fault::kTransport || failure.fault == Fault::kSharedMemory;
}

bool is_shortage(Fault fault, const Status& why) {
  return fault == Fault::kShortage || why.code() == Code::kResourceExhausted;
}

bool of_ladder(const Failure& failure) {
  return failure.fault == Fault::kPolicy && failure.rank == kFrontRank;
}

void add_reasons(std::span<const Refusal> refusals, std::vector<Cause>* causes) {
  for (const Refusal& refusal : refusals) {
    const Status named =
        refusal.status.while_doing(cat("transport ", refusal.rung, " was refused"));
    causes->insert(causes->end(), named.causes().begin(), named.causes().end());
  }
}

Status all_reasons(std::span<const Refusal> refusals, const Failure& last) {
  std::vector<Cause> causes;
  add_reasons(refusals, &causes);
  if (!of_ladder(last))
    causes.insert(causes.end(), last.why.causes().begin(), last.why.causes().end());
  return Status(std::move(causes));
}

std::string first_that_may_work(const std::vector<std::string>& rungs, const RungContext& context) {
  for (const std::string& name : rungs) {
    const Rung& rung = *find_rung(name);
    if (rung.probe(context).ok() &&
        check_budget(rung.need(context), context.facts, context.budget).ok())
      return name;
  }
  return "";
}

std::vector<Shortage> shortages_of_all(const TransportReport& report, const HostFacts& facts,
                                       const BudgetOptions& budget) {
  // With swap the kernel may find room where the limit says that there is none. For one rank only a
  // try tells. Transports do not count on swap.
  struct sysinfo machine = {};
  if (report.world_size == 1 && ::sysinfo(&machine) == 0 && machine.totalswap > 0) return {};
  ShmNeed nothing;
  nothing.rung = kNoTransport;
  const Status why = check_budget(nothing, facts, budget);
  if (why.ok()) return {};
  std::vector<Shortage> shortages = {{nothing, why, 0, budget.reserved_bytes}};
  for (const ShmNeed& need : report.needs) {
    if (!find_rung(need.rung)->on_device)
      shortages.push_back({need, why, budget.headroom_bytes, budget.reserved_bytes});
  }
  return shortages;
}

std::string refused_names(const std::vector<Refusal>& refusals) {
  std::string names;
  for (const Refusal& refusal : refusals) names += cat(names.empty() ? "" : ", ", refusal.rung);
  return names;
}

}  // namespace shoal
