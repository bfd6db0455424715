#include "server/host/start_log.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "runtime/transport/nccl_bug_report.h"
#include "runtime/transport/report_text.h"

namespace shoal {
namespace {

/// What the rung in use takes; nothing if it was not computed.
ShmNeed need_of(const TransportReport& report) {
  const auto need = std::find_if(report.needs.begin(), report.needs.end(),
                                 [&report](const ShmNeed& one) { return one.rung == report.rung; });
  return need == report.needs.end() ? ShmNeed() : *need;
}

LogValue rank_of(const Failure& why) {
  return why.rank != kFrontRank ? LogValue(why.rank) : LogValue();
}

/// " (docker): TITLE: COMMAND". YAML is left out, because one line of it would be of no use.
std::string in_one_line(const Remedy& remedy) {
  const std::string text = cat(" (", remedy.kind, "): ", remedy.title);
  if (remedy.kind == "kubernetes") return text;
  return cat(text, ": ", remedy.text.substr(0, remedy.text.find('\n')));
}

}  // namespace

void log_phase(Phase phase, double seconds, const std::string& rung) {
  const bool over_rung = !rung.empty() && moves_bytes(phase);
  log_info(cat("start: ", phase_name(phase), " took ", with_decimals(seconds, 3), " s",
               over_rung ? cat(" over ", rung) : ""),
           {{"event", "start_phase"},
            {"phase", phase_name(phase)},
            {"took_ms", milliseconds_of(seconds)},
            {"transport", over_rung ? LogValue(rung) : LogValue()}});
}

void log_slow_phase(Phase phase, int seconds) {
  log_info(cat("start: ", phase_name(phase), " is not over after ", seconds,
               " s: ", phase_meaning(phase)),
           {{"event", "start_slow"}, {"phase", phase_name(phase)}, {"after_ms", seconds * 1000}});
}

void log_loading(int percent) {
  log_info(cat("loading ", percent, " %"), {{"event", "loading"}, {"percent", percent}});
}

void log_refused(const Refusal& refusal, const std::string& next, bool as_good) {
  const std::string text =
      cat("transport ", refusal.rung, " refused (", phase_name(refusal.phase), "), trying ", next,
          as_good ? ", which is as good: " : ": ", explained(refusal.status, 600));
  log_line(as_good ? LogLevel::kInfo : LogLevel::kWarning, text,
           {{"event", "transport_refused"},
            {"transport", refusal.rung},
            {"phase", phase_name(refusal.phase)},
            {"code", code_name(refusal.status.code())},
            {"shm_short", refusal.shared_memory()},
            {"next", next}});
}

void log_verified(const TransportReport& report) {
  const ShmNeed need = need_of(report);
  log_info(figures_text(report), {{"event", "transport"},
                                  {"transport", report.rung},
                                  {"ranks", report.world_size},
                                  {"verdict", verdict_name(report.verdict())},
                                  {"degraded", report.degraded()},
                                  {"dev_shm_bytes", need.dev_shm_bytes()},
                                  {"memory_bytes", need.memory_bytes()}});
  for (const std::string& line : nccl_bug_warnings(report.nccl, report.rung)) log_warning(line);
}

void log_cost(const TransportReport& report) {
  if (report.verdict() == Verdict::kFirst) return;
  std::string text = verdict_text(report);
  const Remedy* first = report.remedies.empty() ? nullptr : &report.remedies.front();
  if (report.verdict() == Verdict::kAsGood) {
    text += " Nothing needs to be done.";
  } else if (first != nullptr) {
    text += cat(" What would make ", report.first(), " work here", in_one_line(*first));
  }
  log_line(report.degraded() ? LogLevel::kWarning : LogLevel::kInfo, text,
           {{"event", "transport_cost"},
            {"transport", report.rung},
            {"first", report.first()},
            {"verdict", verdict_name(report.verdict())},
            {"degraded", report.degraded()},
            {"remedy", first != nullptr ? LogValue(first->title) : LogValue()}});
}

void log_remedies(const std::vector<Remedy>& remedies) {
  for (const Remedy& remedy : remedies)
    log_warning(cat("remedy", in_one_line(remedy)),
                {{"event", "start_remedy"}, {"remedy", remedy.title}});
}

void log_lost(const Failure& why, const RestartCount& count) {
  log_warning(cat("starting the ranks again (",
                  count.counts ? cat(count.restarts, " of ", count.max_restarts)
                               : "a kill from outside, which does not count against "
                                 "--max-restarts",
                  "): ", explained(why.why, 900)),
              {{"event", "ranks_lost"},
               {"lost_rank", rank_of(why)},
               {"fault", fault_name(why.fault)},
               {"code", code_name(why.why.code())},
               {"phase", phase_name(why.phase)},
               {"step", why.step != 0 ? LogValue(static_cast<int64_t>(why.step)) : LogValue()},
               {"signal", why.signal != 0 ? LogValue(why.signal) : LogValue()},
               {"counts", count.counts},
               {"restarts", count.restarts},
               {"max_restarts", count.max_restarts}});
}

void log_shortage(const Failure& why, double seconds) {
  log_warning(cat("something is short, so the ranks cannot be started yet (", phase_name(why.phase),
                  "); next try in ", with_decimals(seconds, 1), " s: ", explained(why.why, 600)),
              {{"event", "ranks_short"},
               {"lost_rank", rank_of(why)},
               {"fault", fault_name(why.fault)},
               {"code", code_name(why.why.code())},
               {"phase", phase_name(why.phase)},
               {"retry_ms", milliseconds_of(seconds)}});
}

void log_recovered(const std::string& rung, double seconds) {
  log_info(
      cat("the ranks run again over ", rung, " after ", with_decimals(seconds, 2), " s"),
      {{"event", "ranks_recovered"}, {"transport", rung}, {"took_ms", milliseconds_of(seconds)}});
}

}  // namespace shoal
