#include <unistd.h>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/page_size.h"
#include "runtime/base/quantity.h"
#include "runtime/base/terminal.h"
#include "runtime/supervisor/ladder.h"
#include "runtime/transport/facts/fact_names.h"
#include "runtime/transport/needs/process_budget.h"
#include "runtime/transport/report_text.h"
#include "server/cli/command_io.h"
#include "server/cli/doctor_flags.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/commands/nccl_plan.h"
#include "server/commands/needs_table.h"
#include "server/host/device_choice.h"
#include "server/host/transport_setup.h"

namespace shoal {
namespace {

/// Exit code if ranks would be slower than over the first rung, and nothing says that this is fine.
constexpr int kSlower = 1;

/// Goes all the way to a proven transport, with real ranks that know no model.
Ending prove(TransportFlags place, int ranks, TransportReport* report) {
  report->world_size = ranks;
  SHOAL_ASSIGN_OR_RETURN(HostFacts facts, at(Stage::kStart, facts_for(&place, ranks)));
  const Status enough = check_processes({ranks, 0}, facts);
  LadderOptions ladder_flags = ladder_options(place, ranks, 0);
  ladder_flags.names.remedy_hint.clear();  // this is shoal doctor
  ladder_flags.names.clean_stale = clean_stale_command();
  ladder_flags.on_refused = nullptr;  // the report has the refusals
  const GpuFacts gpu = facts.gpu;
  Ladder ladder(std::move(ladder_flags), std::move(facts), ranks);
  *report = ladder.report();
  if (!enough.ok()) return at(Stage::kStart, enough);
  if (place.device.kind == DeviceKind::kCuda) {
    if (Status refused = check_for_model(place.device, report->facts.gpu); !refused.ok())
      return {std::move(refused), Stage::kStart, Fault::kTransport};
  }
  WorkerGroupOptions options;
  options.world_size = ranks;
  options.startup_timeout_s = place.startup_timeout_s;
  options.step_timeout_s = place.step_timeout_s;
  options.start.transport_only = true;
  set_device(place.device, gpu, &options.start);
  options.start.collective_timeout_ms = static_cast<int64_t>(place.startup_timeout_s * 1000);
  StartControl control;
  control.deadline = Deadline::after_s(options.startup_timeout_s);
  const Attempt<std::unique_ptr<WorkerGroup>> group = ladder.start(options, control);
  *report = ladder.report();
  if (group.ok()) return {};
  return {group.failure().why, Stage::kStart, group.failure().fault};
}

/// For a failure that is no rung's refusal, because those say why themselves.
void add_failure(const Status& failure, TransportReport* report) {
  report->failure = failure;
  for (Remedy& remedy : remedies_of_failure(report->facts, report->world_size, failure))
    report->remedies.push_back(std::move(remedy));
}

Json files_json(const std::vector<LeftFile>& files) {
  Json list = Json::array();
  for (const LeftFile& file : files)
    list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"state", to_text(file.state)}});
  return list;
}

std::string document(const TransportReport& report, const SweepResult& swept) {
  Json json = to_json(report);
  json["version"] = SHOAL_VERSION;
  json["removed"] = files_json(swept.removed);
  json["kept"] = files_json(swept.kept);
  return json_text(json) + "\n";
}

/// What belongs below the verdict. starts: ranks run. memory: the line about what a server's would
/// take.
std::string below_verdict(const DoctorFlags& flags, bool starts, const std::string& memory) {
  if (flags.serve.engine.model.empty()) {
    return cat(default_ranks_line(flags),
               flags.says_whose_ranks ? "this says nothing about another engine: for that take "
                                        "--nccl-version V, or shmtest --min-size -- COMMAND\n"
                                      : "");
  }
  if (!starts) return "";
  return cat("shoal serve would start here, if its ports are free\n", memory, "\n");
}

/// below: lines that come after the verdict.
std::string text(const TransportReport& report, const SweepResult& swept, const std::string& below,
                 RankWords words) {
  const bool colour = wants_colour(STDOUT_FILENO);
  std::string lines = to_text(report, colour, words);
  lines.insert(verdict_text(report, colour, words).size() + 1, below);
  for (const std::string& line : sweep_lines(swept)) lines += line + "\n";
  return lines;
}

/// Ends after the report of a start that failed, and returns the exit code. For people the report
/// has said the reason. So the reason is printed again only if that adds something: the places of a
/// bug, which the report does not show, or a line for those who read the log or the JSON document
/// instead.
int end_refused(const Ending& ending, bool json) {
  const bool said = !json && log_options().format == LogFormat::kText && !needs_places(ending);
  return said ? static_cast<int>(exit_code(ending)) : report_failure(ending);
}

int exit_code_of(const TransportReport& report) {
  return report.degraded() && report.allowed_by.empty() ? kSlower : 0;
}

std::string needs(bool json) {
  const auto page_bytes = static_cast<int64_t>(page_size());
  if (!json) return needs_table(page_bytes);
  Json document = needs_json(page_bytes);
  document["version"] = SHOAL_VERSION;
  return json_text(document) + "\n";
}

}  // namespace

int run_doctor(const DoctorFlags& flags, Rehearsal rehearse) {
  if (flags.nccl_version) return run_nccl_plan(flags);
  if (flags.needs) return report_failure(at(Stage::kRequest, write_stdout(needs(flags.json))));
  ServeFlags serve = flags.serve;
  TransportFlags& place = serve.engine.transport;
  // The report lists what --clean-stale has removed. So it is done here, and not by the start that
  // follows.
  SweepResult swept;
  if (std::exchange(place.clean_stale, false)) swept = clean_stale();
  TransportReport report;
  std::string memory;
  const bool alone = serve.engine.model.empty();
  const Ending ending = alone ? prove(place, serve.engine.tensor_parallel_size, &report)
                              : rehearse(serve, &report, &memory);
  if (!ending.ok() && ending.fault != Fault::kPolicy) add_failure(ending.why, &report);
  const std::string below = below_verdict(flags, ending.ok(), memory);
  const RankWords words = flags.says_whose_ranks ? RankWords::kShoals : RankWords::kPlain;
  const std::string said = flags.json ? document(report, swept) : text(report, swept, below, words);
  const Status written = write_stdout(said);
  if (!written.ok()) return report_failure(at(Stage::kRequest, written));
  if (!ending.ok()) return end_refused(ending, flags.json);
  return exit_code_of(report);
}

}  // namespace shoal
