#include "runtime/supervisor/ladder.h"
#include "runtime/transport/report.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/commands/nccl_plan.h"
#include "server/commands/needs_table.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

/// A later rung than the first would be used.
constexpr int kDegraded = 1;

/// The whole way to a proven transport, with real ranks that load nothing.
Status prove(const DoctorFlags& flags, TransportReport* report) {
  Ladder ladder(ladder_options(flags.transport, flags.tensor_parallel_size, 0),
                facts_for(flags.transport, flags.tensor_parallel_size), flags.tensor_parallel_size);
  WorkerGroupOptions options;
  options.world_size = flags.tensor_parallel_size;
  options.startup_timeout_s = flags.transport.startup_timeout_s;
  options.step_timeout_s = flags.transport.step_timeout_s;
  options.init.transport_only = true;
  set_device(flags.transport.device, &options.init);
  options.init.collective_timeout_ms =
      static_cast<int64_t>(flags.transport.startup_timeout_s * 1000);
  GroupFailure failure;
  const Result<std::unique_ptr<WorkerGroup>> group = ladder.start(options, &failure);
  *report = ladder.report();
  return group.status();
}

}  // namespace

int run_doctor(const DoctorFlags& flags) {
  if (flags.nccl_version) return run_nccl_plan(flags);
  if (flags.needs) return report_failure(write_stdout(needs_table()), Stage::kRequest);
  TransportReport report;
  const Status status = prove(flags, &report);
  const std::string text = flags.json ? json_text(to_json(report)) + "\n" : to_text(report);
  if (const Status written = write_stdout(text); !written.ok())
    return report_failure(written, Stage::kRequest);
  if (!status.ok()) return report_failure(status, Stage::kStart);
  return report.degraded() ? kDegraded : 0;
}

}  // namespace shoal
