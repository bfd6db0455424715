#include <cstdio>
#include <cstring>
#include <optional>
#include <unistd.h>

#include "runtime/base/kv_block.h"
#include "runtime/base/log.h"
#include "runtime/base/patient_writer.h"
#include "runtime/supervisor/end_children.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/cli/shutdown_watchdog.h"
#include "server/cli/stop_signals.h"
#include "server/commands/commands.h"
#include "server/grpc/grpc_server.h"
#include "server/host/engine_host.h"
#include "server/serving/inference_loop.h"

namespace shoal {
namespace {

/// While nothing runs, the death of a worker is noticed within this time.
constexpr int64_t kWatchMs = 100;
constexpr double kDrainSeconds = 30;
/// Requests that come during a shorter restart only wait for it.
constexpr double kLongRestartSeconds = 5;
/// Time for last messages to go out, when no request runs any more.
constexpr int64_t kGoodbyeMs = 2'000;
/// The same after a rank's death: long enough to notify clients, short enough not to delay the exit
/// code.
constexpr int64_t kFailedGoodbyeMs = 300;
/// How long the rest of the shutdown may take when no request runs any more: gRPC, which waits for
/// its calls and threads without a bound, and the end of the ranks.
constexpr int64_t kGrpcEndMs = 5'000;
constexpr int64_t kRanksEndMs = 10'000;
/// How long the READY line waits for its reader. Nobody watches the ranks meanwhile.
constexpr int64_t kReadyMs = 1'000;

DeploymentInfo deployment_of(const EnginePlan& plan, const Scheduling& scheduling,
                             EngineHost& host) {
  DeploymentInfo info;
  info.tensor_parallel_size = plan.world_size;
  info.kv_block_tokens = kBlockTokens;
  info.limits = plan.model.limits;
  info.priorities = scheduling.policy == SchedulingPolicy::kPriority;
  info.kernels = host.kernels();
  info.transport_report = [&host] { return host.report(); };
  return info;
}

void say_ready(const GrpcServer& server, const std::string& model, const EnginePlan& plan,
               const EngineHost& host, double load_s) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f", load_s);
  const TransportReport report = host.report();
  std::string refused;
  for (const Refusal& refusal : report.refusals)
    refused += cat(refused.empty() ? " refused=" : ",", refusal.rung);
  PatientWriter out(STDOUT_FILENO);
  const bool written =
      out.write(cat("READY grpc=", server.address(), " model=", model, " tp=", plan.world_size,
                    " transport=", report.rung, " kernels=", host.kernels(), " load_s=", seconds,
                    refused, "\n"),
                kReadyMs);
  // The process that was waiting for this line is gone or stuck, but that is no reason to stop
  // serving.
  if (!written) log_warning(cat("ready, but nobody reads it: ", std::strerror(out.error())));
}

/// Serves until a signal arrives and requests have drained (returns ok), or until the ranks are
/// lost.
Status serve_until_stopped(GrpcServer& server, InferenceLoop& loop, EngineHost& host,
                           StopSignals& signals) {
  bool refusing = false;  // because a restart takes long
  while (!signals.wait(Deadline::after_ms(kWatchMs))) {
    log_lost_lines();
    SHOAL_RETURN_IF_ERROR(loop.status());
    const Status status = host.watch();
    if (const bool late = host.restarting_s() > kLongRestartSeconds; late != refusing)
      server.set_restarting(refusing = late);
    if (!status.ok()) {
      server.set_draining();
      // The next step fails in the same way, and ends the open requests with the reason.
      (void)loop.drain(Deadline::after_s(kDrainSeconds), [&host] { host.give_up(); });
      return status;
    }
  }
  log_info("stopping: running requests may finish");
  server.set_draining();
  if (!loop.drain(Deadline::after_s(kDrainSeconds), [&host] { host.give_up(); }) &&
      (loop.status().ok() || loop.status().code() == Code::kCancelled)) {
    log_warning(cat("requests that still ran after ", kDrainSeconds, " s were cancelled"));
  }
  const Status status = loop.status();
  return status.code() == Code::kCancelled ? Status()
                                           // We cancelled the restart ourselves during shutdown, so
                                           // this is not an error.
                                           : status;
}

/// A bad address is a mistake in the flags; a port that is taken is a problem of the machine.
Stage listening_stage(const Status& status) {
  return status.code() == Code::kInvalidArgument ? Stage::kRequest : Stage::kStart;
}

Ending serve(const ServeFlags& flags) {
  const Clock::time_point start = Clock::now();
  HostFacts facts = facts_for(flags.engine.transport, flags.engine.tensor_parallel_size);
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<StopSignals> signals,
                         at(Stage::kStart, StopSignals::install(end_children_at_once)));
  ShutdownWatchdog watchdog(end_children_at_once);  // outlives all that it watches
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine.model)));
  SHOAL_ASSIGN_OR_RETURN(const EnginePlan plan,
                         at(Stage::kRequest, plan_engine(flags.engine, files, host_resources())));
  Result<std::unique_ptr<GrpcServer>> listening =
      GrpcServer::start({flags.host, flags.grpc_port, files.name, plan.world_size});
  const Stage listen = listening_stage(listening.status());
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<GrpcServer> server,
                         at(listen, std::move(listening)));
  SHOAL_ASSIGN_OR_RETURN(Tokenizer tokenizer,
                         at(Stage::kModel, Tokenizer::load(flags.engine.model)));
  const ServedModel model = make_served_model(files, std::move(tokenizer), plan, flags.engine.seed);
  log_info(plan.describe_memory());
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<EngineHost> host,
                         at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts),
                                                             ProgressStyle::kLogged)));

  Scheduling scheduling = scheduling_of(flags.scheduling);
  scheduling.queue = queue_limits_of(flags.queue, plan.model.limits.max_num_seqs);
  InferenceLoop loop(
      model, plan.model.limits, [&host](const StepPlan& step) { return host->step(step); },
      scheduling);
  server->set_ready(&model, &loop, deployment_of(plan, scheduling, *host));
  signals->started();
  say_ready(*server, files.name, plan, *host, seconds_since(start));
  const Status status = serve_until_stopped(*server, loop, *host, *signals);
  const Ending ending = host->ending(status);
  watchdog.expect("gRPC's server", kGrpcEndMs, exit_code(ending),
                  [&server] { return server->open_work(); });
  // Shut the server down before the loop is destroyed, because the server's calls use the loop.
  server->shutdown(Deadline::after_ms(status.ok() ? kGoodbyeMs : kFailedGoodbyeMs));
  watchdog.expect("the end of the ranks", kRanksEndMs, exit_code(ending));
  return ending;
}

}  // namespace

int run_serve(const ServeFlags& flags) {
  return report_failure(serve(flags));
}

}  // namespace shoal
