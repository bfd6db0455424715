#pragma once
#include <span>
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/transport/report.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// The fault of a failure in the front, before any rank of the rung was started. A refusal in
/// budget or reservation is always about memory. A probe may refuse for permissions too, and on
/// devices it only does so for reasons other than memory.
Failure front_failure(const Rung& rung, const ShmNeed& need, Phase phase, const Status& why);

bool another_rung_may_work(const Failure& failure);
/// Something ran out. It may be there again in a moment.
bool is_shortage(Fault fault, const Status& why);
/// The ladder's own end: no rung is left, or policy or time forbid to go on.
bool of_ladder(const Failure& failure);

void add_reasons(std::span<const Refusal> refusals, std::vector<Cause>* causes);
/// The reasons of these refusals, and then what ended the try behind them.
Status all_reasons(std::span<const Refusal> refusals, const Failure& last);
/// The first of these rungs of which neither facts nor settings say that it does not work here;
/// empty: there is none. Nothing is tried.
std::string first_that_may_work(const std::vector<std::string>& rungs, const RungContext& context);
/// Tells whether the memory limit is too low for the ranks even without a transport. If it is, the
/// first entry has the need of the ranks alone. Each other entry has the need of one transport of
/// the report in host memory, which comes on top of that. Empty: the ranks fit, or only a try can
/// tell.
std::vector<Shortage> shortages_of_all(const TransportReport& report, const HostFacts& facts,
                                       const BudgetOptions& budget);
/// "shm, memfd"
std::string refused_names(const std::vector<Refusal>& refusals);

}  // namespace shoal
