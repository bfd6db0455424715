#include <cstdio>
#include <optional>

#include "kernels/args.h"
#include "runtime/base/log.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/cli/stop_signals.h"
#include "server/commands/commands.h"
#include "server/grpc/grpc_server.h"
#include "server/host/engine_host.h"
#include "server/serving/inference_loop.h"

namespace shoal {
namespace {

/// How soon a worker that dies while nothing runs is noticed.
constexpr int64_t kWatchMs = 100;
constexpr double kDrainSeconds = 30;
/// For last messages on their way out, once no request runs.
constexpr int64_t kGoodbyeMs = 2'000;
/// After a rank's death: clients are told, and the exit code is not kept waiting.
constexpr int64_t kFailedGoodbyeMs = 300;

DeploymentInfo deployment_of(const EnginePlan& plan, EngineHost& host) {
  DeploymentInfo info;
  info.tensor_parallel_size = plan.world_size;
  info.kv_block_tokens = kBlockTokens;
  info.kv_blocks = plan.limits.kv_blocks;
  info.max_num_seqs = plan.limits.max_num_seqs;
  info.max_num_batched_tokens = plan.limits.max_num_batched_tokens;
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
  const Status written = write_stdout(cat(
      "READY grpc=", server.address(), " model=", model, " tp=", plan.world_size,
      " transport=", report.rung, " kernels=", host.kernels(), " load_s=", seconds, refused, "\n"));
  // Whoever waits for this line is gone; who calls us needs it no more.
  if (!written.ok()) log_warning(cat("ready, but nobody reads it: ", written.to_string()));
}

/// Serves until a signal (ok, drained) or until the ranks are lost.
Status serve_until_stopped(GrpcServer& server, InferenceLoop& loop, EngineHost& host,
                           StopSignals& signals) {
  const auto stopping = [&signals] { return signals.wait(Deadline::after_ms(0)); };
  std::optional<Deadline> finish_by;
  // Ranks that are just being started again are waited for as long as somebody needs them.
  const auto given_up = [&] {
    if (!stopping()) return false;
    if (!finish_by) finish_by = Deadline::after_s(kDrainSeconds);
    const EngineLoad load = loop.load();
    return finish_by->passed() || load.running + load.waiting == 0;
  };
  while (!signals.wait(Deadline::after_ms(kWatchMs))) {
    SHOAL_RETURN_IF_ERROR(loop.status());
    const Status status = host.watch(given_up);
    if (!status.ok() && !stopping()) return status;
  }
  log_info("stopping: running requests may finish");
  server.set_draining();
  if (!loop.drain(finish_by.value_or(Deadline::after_s(kDrainSeconds)),
                  [&host] { host.give_up(); }) &&
      loop.status().ok()) {
    log_warning(cat("requests that still ran after ", kDrainSeconds, " s were cancelled"));
  }
  const Status status = loop.status();
  return status.code() == Code::kCancelled ? Status()
                                           : status;  // given up: nobody's ranks are missing
}

Status serve(const ServeFlags& flags, Stage* stage) {
  const Clock::time_point start = Clock::now();
  HostFacts facts = facts_for(flags.engine.transport, flags.engine.tensor_parallel_size);
  *stage = Stage::kStart;
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<StopSignals> signals, StopSignals::install());
  *stage = Stage::kModel;
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, open_model(flags.engine.model));
  *stage = Stage::kRequest;
  SHOAL_ASSIGN_OR_RETURN(const EnginePlan plan, plan_engine(flags.engine, files, host_resources()));

  Result<std::unique_ptr<GrpcServer>> listening =
      GrpcServer::start({flags.host, flags.grpc_port, files.name});
  if (!listening.ok()) {
    *stage = listening.status().code() == Code::kInvalidArgument ? Stage::kRequest : Stage::kStart;
    return listening.status();
  }
  const std::unique_ptr<GrpcServer> server = std::move(listening).value();

  *stage = Stage::kModel;
  SHOAL_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(flags.engine.model));
  *stage = Stage::kStart;
  const ServedModel model = make_served_model(files, std::move(tokenizer), plan, flags.engine.seed);
  log_info(plan.describe_memory());
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineHost> host,
      EngineHost::start(plan, flags.engine.transport,
                        {std::move(facts), ProgressStyle::kLogged, flags.engine.max_restarts}));

  *stage = Stage::kRun;
  InferenceLoop loop(model, plan.limits,
                     [&host](const StepPlan& step) { return host->step(step); });
  server->set_ready(&model, &loop, deployment_of(plan, *host));
  signals->started();
  say_ready(*server, files.name, plan, *host, seconds_since(start));
  const Status status = serve_until_stopped(*server, loop, *host, *signals);
  // Before the loop goes: the server's calls use it.
  server->shutdown(Deadline::after_ms(status.ok() ? kGoodbyeMs : kFailedGoodbyeMs));
  return status;
}

}  // namespace

int run_serve(const ServeFlags& flags) {
  Stage stage;
  const Status status = serve(flags, &stage);
  return report_failure(status, stage);
}

}  // namespace shoal
