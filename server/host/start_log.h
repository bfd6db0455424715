#pragma once
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/supervisor/supervisor.h"
#include "runtime/transport/report.h"

namespace shoal {

// The lines of the log about a start of the ranks, the first one or a later one, in the order in
// which they come. The last three are about ranks that were lost.

/// The ranks have left a phase, or have been in it for long.
void log_phase(Phase phase, double seconds, const std::string& rung);
void log_slow_phase(Phase phase, int seconds);
void log_loading(int percent);
/// A transport was refused, or is proven.
void log_refused(const Refusal& refusal, const std::string& next, bool as_good);
void log_verified(const TransportReport& report);
/// What the transport in use costs beside the first choice, and the first remedy, or that nothing
/// needs to be done. The refusals have been logged one by one, and so have the figures. A remedy in
/// YAML is only named, because one line of it would be of no use. Nothing if it is the first
/// choice.
void log_cost(const TransportReport& report);
/// What the user can change if a start is refused before it begins. The error that follows says
/// why.
void log_remedies(const std::vector<Remedy>& remedies);

void log_lost(const Failure& why, const RestartCount& count);
/// They cannot be started again yet; the next try is in `seconds`.
void log_shortage(const Failure& why, double seconds);
void log_recovered(const std::string& rung, double seconds);

}  // namespace shoal
