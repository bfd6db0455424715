#include <optional>

#include "runtime/supervisor/ladder.h"
#include "runtime/transport/needs/process_budget.h"
#include "runtime/transport/report.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/commands/nccl_plan.h"
#include "server/commands/needs_table.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

/// Exit code if a later rung than the first would be used.
constexpr int kDegraded = 1;

/// Goes all the way to a proven transport, with real ranks that load no model.
std::optional<Failure> prove(const DoctorFlags& flags, TransportReport* report) {
  HostFacts facts = facts_for(flags.transport, flags.tensor_parallel_size);
  const Status enough = check_processes({flags.tensor_parallel_size, 0}, facts);
  Ladder ladder(ladder_options(flags.transport, flags.tensor_parallel_size, 0), std::move(facts),
                flags.tensor_parallel_size);
  *report = ladder.report();
  if (!enough.ok()) return Failure{enough, Phase::kBudget};
  WorkerGroupOptions options;
  options.world_size = flags.tensor_parallel_size;
  options.startup_timeout_s = flags.transport.startup_timeout_s;
  options.step_timeout_s = flags.transport.step_timeout_s;
  options.start.transport_only = true;
  set_device(flags.transport.device, &options.start);
  options.start.collective_timeout_ms =
      static_cast<int64_t>(flags.transport.startup_timeout_s * 1000);
  StartControl control;
  control.deadline = Deadline::after_s(options.startup_timeout_s);
  const Attempt<std::unique_ptr<WorkerGroup>> group = ladder.start(options, control);
  *report = ladder.report();
  if (group.ok()) return std::nullopt;
  return group.failure();
}

}  // namespace

int run_doctor(const DoctorFlags& flags) {
  if (flags.nccl_version) return run_nccl_plan(flags);
  if (flags.needs) return report_failure(at(Stage::kRequest, write_stdout(needs_table())));
  TransportReport report;
  const std::optional<Failure> failure = prove(flags, &report);
  const std::string text = flags.json ? json_text(to_json(report)) + "\n" : to_text(report);
  if (const Status written = write_stdout(text); !written.ok())
    return report_failure(at(Stage::kRequest, written));
  if (failure) return report_failure({failure->why, Stage::kStart, failure->fault});
  return report.degraded() ? kDegraded : 0;
}

}  // namespace shoal
