#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/kv_block.h"
#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "runtime/base/patient_writer.h"
#include "runtime/supervisor/end_children.h"
#include "runtime/transport/facts/cgroup_facts.h"
#include "runtime/transport/facts/machine_facts.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/cli/ready_file.h"
#include "server/cli/service_manager.h"
#include "server/cli/shutdown_watchdog.h"
#include "server/cli/stop_signals.h"
#include "server/commands/chat_prompt.h"
#include "server/commands/commands.h"
#include "server/commands/fronts.h"
#include "server/host/device_plan.h"
#include "server/host/engine_host.h"
#include "server/host/model_fingerprint.h"
#include "server/host/read_in_time.h"
#include "server/host/start_log.h"
#include "server/metrics/metrics.h"
#include "server/serving/inference_loop.h"

namespace shoal {
namespace {

/// While nothing runs, the death of a worker is noticed within this time.
constexpr int64_t kWatchMs = 100;
/// Requests that come during a shorter restart only wait for it.
constexpr double kLongRestartSeconds = 5;
/// Time for last messages to go out, when no request runs any more.
constexpr int64_t kGoodbyeMs = 2'000;
/// The same after a rank's death: enough to notify clients, and no long delay of the exit code.
constexpr int64_t kFailedGoodbyeMs = 400;
/// How long the rest of the shutdown may take when no request runs any more: gRPC, which waits for
/// its calls and threads without a bound, and the end of the ranks.
constexpr int64_t kGrpcEndMs = 5'000;
constexpr int64_t kRanksEndMs = 10'000;
/// How long a start may take besides --startup-timeout: for sockets, and what is left to hash.
constexpr double kModelSeconds = 60;
/// How long the READY line waits for its reader. Nobody watches the ranks meanwhile.
constexpr int64_t kReadyMs = 1'000;

Scheduling scheduling_of(const ServeFlags& flags, const EnginePlan& plan) {
  Scheduling scheduling = shoal::scheduling_of(flags.scheduling);
  scheduling.queue = queue_limits_of(flags.queue, plan.model.limits.max_num_seqs);
  return scheduling;
}

DeploymentInfo deployment_of(const EnginePlan& plan, const Scheduling& scheduling, EngineHost& host,
                             std::string fingerprint) {
  DeploymentInfo info;
  info.fingerprint = std::move(fingerprint);
  info.tensor_parallel_size = plan.world_size;
  info.kv_block_tokens = kBlockTokens;
  info.limits = plan.model.limits;
  info.priorities = scheduling.policy == SchedulingPolicy::kPriority;
  info.kernels = host.kernels();
  info.arithmetic = host.arithmetic();
  info.gpus = host.gpus();
  info.transport_report = [&host] { return host.report(); };
  return info;
}

std::string ready_line(const Fronts& fronts, const std::string& model, const EnginePlan& plan,
                       const EngineHost& host, double load_s) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f", load_s);
  const TransportReport report = host.report();
  std::string refused;
  for (const Refusal& refusal : report.refusals)
    refused += cat(refused.empty() ? " refused=" : ",", refusal.rung);
  const std::string gpus = host.gpus().empty() ? "" : cat(" gpus=", ready_value(host.gpus()));
  return cat("READY ", fronts.addresses(), " model=", ready_value(model), " tp=", plan.world_size,
             " transport=", report.rung, " kernels=", host.kernels(),
             " arithmetic=", host.arithmetic(), " load_s=", seconds, refused, gpus, "\n");
}

/// Who is told how the server is doing, besides its clients.
struct Observers {
  ServiceManager manager;
  std::unique_ptr<ReadyFile> ready_file;
};

/// What has to be done before the process ends at once.
StopSignals::Tidy tidy_of(Observers& observers) {
  return [&observers](int) {
    observers.ready_file->remove();
    end_children_at_once();
  };
}

/// Says that the server is ready. Whoever was waiting for that may be gone or stuck, but that is no
/// reason to stop serving.
void say_ready(const std::string& line, Observers& observers) {
  const Status filed = observers.ready_file->write(line);
  if (!filed.ok()) log_warning(cat("ready, but the file cannot say so: ", explained(filed)));
  observers.manager.ready(line.substr(0, line.find('\n')));
  PatientWriter out(STDOUT_FILENO);
  if (!out.write(line, kReadyMs))
    log_warning(cat("ready, but nobody reads it: ", std::strerror(out.error())));
}

/// A server that serves.
struct Serving {
  Fronts& fronts;
  InferenceLoop& loop;
  EngineHost& host;
  Observers& observers;
  double grace_s;  ///< in which requests are accepted although the server stops
  double drain_s;  ///< in which running requests may finish
};

/// Watches the ranks until `over` returns true, which waits for a moment each time. all_well: what
/// the service manager is told when a long restart is over. An error means that the ranks are lost;
/// the open requests have been told then.
Status watch_until(const Serving& serving, std::string_view all_well,
                   const std::function<bool()>& over) {
  while (!over()) {
    log_lost_lines();
    SHOAL_RETURN_IF_ERROR(serving.loop.status());
    // Asked before watch(), which returns an error if a restart is over because it has failed.
    const Status restarting = serving.host.restarting_s() > kLongRestartSeconds
                                  ? serving.host.why_restarting()
                                  : Status();
    const Status status = serving.host.watch();
    if (status.ok() && serving.fronts.set_restarting(restarting))
      serving.observers.manager.status(restarting.ok() ? all_well
                                                       : "the ranks are being started again");
    if (serving.fronts.alive()) serving.observers.manager.alive();
    if (!status.ok()) {
      serving.fronts.set_draining();
      // The next step fails in the same way, and ends the open requests with the reason.
      (void)serving.loop.drain(Deadline::after_s(serving.drain_s),
                               [&serving] { serving.host.give_up(); });
      return status;
    }
  }
  return {};
}

constexpr std::string_view kMayFinish = "running requests may finish";

std::string draining_text(int64_t requests, double limit_s) {
  if (requests == 0) return "stopping: no request is running";
  return cat("stopping: ", counted(requests, "request"), " may finish within ",
             with_digits(limit_s, 6), " s");
}

/// No longer ready: `why` is ok if a signal asked for the end.
void say_stopping(const Serving& serving, const Status& why) {
  serving.observers.ready_file->remove();
  const double limit_s =
      serving.grace_s + serving.drain_s + 1e-3 * (kGoodbyeMs + kGrpcEndMs + kRanksEndMs);
  serving.observers.manager.stopping(why.ok() ? kMayFinish : why.message(), limit_s);
}

/// Serves until a signal arrives and requests have drained (returns ok), or until the ranks are
/// lost.
Status serve_until_stopped(const Serving& serving, StopSignals& signals) {
  const Status stopped =
      watch_until(serving, "ready", [&] { return signals.wait(Deadline::after_ms(kWatchMs)); });
  say_stopping(serving, stopped);
  SHOAL_RETURN_IF_ERROR(stopped);
  if (const double grace_s = serving.grace_s; grace_s > 0) {
    log_info(cat("stopping: health is red, and requests are accepted for ", with_digits(grace_s, 6),
                 " s more"),
             {{"event", "stopping"}, {"grace_ms", milliseconds_of(grace_s)}});
    serving.fronts.set_stopping();
    const Deadline grace = Deadline::after_s(grace_s);
    SHOAL_RETURN_IF_ERROR(watch_until(serving, kMayFinish, [&grace] {
      std::this_thread::sleep_for(std::chrono::milliseconds(grace.remaining_ms(kWatchMs)));
      return grace.passed();
    }));
  }
  InferenceLoop& loop = serving.loop;
  const EngineLoad load = loop.load();
  const int64_t requests = load.running + load.waiting;
  log_info(draining_text(requests, serving.drain_s),
           {{"event", "draining"},
            {"requests", requests},
            {"limit_ms", milliseconds_of(serving.drain_s)}});
  serving.fronts.set_draining();
  if (!loop.drain(Deadline::after_s(serving.drain_s), [&serving] { serving.host.give_up(); }) &&
      (loop.status().ok() || loop.status().code() == Code::kCancelled)) {
    log_warning(
        cat("requests that still ran after ", with_digits(serving.drain_s, 6), " s were cancelled"),
        {{"event", "drain_late"}, {"limit_ms", milliseconds_of(serving.drain_s)}});
  }
  const Status status = loop.status();
  return status.code() == Code::kCancelled ? Status()
                                           // We cancelled the restart ourselves during shutdown, so
                                           // this is not an error.
                                           : status;
}

/// While it lives, SIGHUP makes the fronts look at keys and certificates.
class RereadOnHangup {
 public:
  RereadOnHangup(StopSignals& signals, Fronts& fronts) : signals_(signals) {
    signals.on_hangup([&fronts] { fronts.look_at_secrets(); });
  }
  ~RereadOnHangup() { signals_.on_hangup(nullptr); }
  RereadOnHangup(const RereadOnHangup&) = delete;
  RereadOnHangup& operator=(const RereadOnHangup&) = delete;

 private:
  StopSignals& signals_;
};

/// A bad address is a mistake in the flags; a port that is taken is a problem of the machine.
Staged<std::unique_ptr<Fronts>> listen(const ServeFlags& flags, const ModelFiles& files,
                                       const EnginePlan& plan, Metrics& metrics) {
  Result<std::unique_ptr<Fronts>> fronts =
      Fronts::start(flags, files.name, plan.world_size, metrics);
  const bool bad_flag = fronts.status().code() == Code::kInvalidArgument;
  return at(bad_flag ? Stage::kRequest : Stage::kStart, std::move(fronts));
}

/// What requests need of the model: limits, tokenizer and chat template.
Staged<ServedModel> served_model(const ServeFlags& flags, const ModelFiles& files,
                                 const EnginePlan& plan) {
  SHOAL_ASSIGN_OR_RETURN(Tokenizer tokenizer, at(Stage::kModel, load_tokenizer(files)));
  ServedModel model = make_served_model(files, std::move(tokenizer), plan, flags.engine.seed);
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, add_chat_template(flags, files, &model)));
  // Now, because the files may be others later.
  Result<TokenizerArchive> archive =
      read_in_time<TokenizerArchive>(cat("the tokenizer of MODEL ", files.dir), files.start_by,
                                     [dir = files.dir] { return make_tokenizer_archive(dir); });
  if (archive.ok())
    model.tokenizer_files = std::make_shared<const TokenizerArchive>(std::move(archive).value());
  else
    log_warning(cat("gateways cannot get the tokenizer: ", explained(archive.status())));
  return model;
}

/// A server that has everything except its ranks. The members are destroyed in the reverse order.
struct PreparedServer {
  std::unique_ptr<StopSignals> signals;
  std::optional<ShutdownWatchdog> watchdog;
  std::optional<ModelFiles> files;
  EnginePlan plan;
  std::optional<Metrics> metrics;
  std::optional<ServedModel> model;
  std::unique_ptr<Fronts> fronts;
  std::optional<RereadOnHangup> reread;
};

/// facts: get what changes meanwhile. tidy: what has to be done before the process ends at once, by
/// a signal or (0) by the watchdog.
Staged<std::unique_ptr<PreparedServer>> prepare(ServeFlags& flags, HostFacts* facts,
                                                const StopSignals::Tidy& tidy) {
  auto server = std::make_unique<PreparedServer>();
  SHOAL_ASSIGN_OR_RETURN(server->signals, at(Stage::kStart, StopSignals::install(tidy)));
  server->watchdog.emplace([tidy] { tidy(0); });
  SHOAL_ASSIGN_OR_RETURN(server->files, at(Stage::kModel, open_model(flags.engine)));
  const ModelFiles& files = *server->files;
  SHOAL_ASSIGN_OR_RETURN(server->plan,
                         at(Stage::kRequest, plan_on_device(&flags.engine, files, facts->gpu)));
  server->plan.start_by = files.start_by;
  const EnginePlan& plan = server->plan;
  server->metrics.emplace(
      MetricsOptions{served_names(flags, files.name).front(), plan.model.limits, plan.world_size});
  // Before the fronts, so that what it takes does not count as memory that clients have taken.
  SHOAL_ASSIGN_OR_RETURN(server->model, served_model(flags, files, plan));
  SHOAL_ASSIGN_OR_RETURN(server->fronts, listen(flags, files, plan, *server->metrics));
  server->reread.emplace(*server->signals, *server->fronts);
  // The fronts have raised the limit of open files, and have threads.
  facts->limits = limit_facts();
  facts->pids = pids_facts({});
  return server;
}

Staged<std::unique_ptr<EngineHost>> start_ranks(const ServeFlags& flags, EnginePlan& plan,
                                                HostFacts facts, ServiceManager& manager) {
  return at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts),
                                             ProgressStyle::kLogged, [&manager](int percent) {
                                               manager.status(cat("loading ", percent, " %"));
                                             }));
}

/// The ranks are ended after the fronts, when their host is destroyed.
void end_fronts(Fronts& fronts, int64_t goodbye_ms, ExitCode code, ShutdownWatchdog& watchdog) {
  watchdog.expect("gRPC's server", kGrpcEndMs, code, [&fronts] { return fronts.open_work(); });
  fronts.shutdown(Deadline::after_ms(goodbye_ms));
  watchdog.expect("the end of the ranks", kRanksEndMs, code);
}

/// The fingerprint of the weights, which are read whole for it. A model that is changed meanwhile
/// may be why that fails.
Staged<std::string> finish(ModelFingerprint& weights, const ServeFlags& flags, EngineHost& host) {
  Result<std::string> text = weights.finish(flags.engine.dtype, host.arithmetic(),
                                            flags.engine.transport.startup_timeout_s);
  // It names the file that does not answer, and how long that was waited for.
  if (text.status().fault() == Fault::kModelChanged) return at(Stage::kStart, text.status());
  if (!text.ok())
    if (const Status same = host.look_at_model(); !same.ok()) return at(Stage::kStart, same);
  return at(Stage::kModel, std::move(text));
}

Ending serve(ServeFlags flags, Observers& observers, Introduction introduce) {
  const Clock::time_point start = Clock::now();
  SHOAL_ASSIGN_OR_RETURN(
      HostFacts facts,
      at(Stage::kStart, facts_for(&flags.engine.transport, flags.engine.tensor_parallel_size)));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<PreparedServer> server,
                         prepare(flags, &facts, tidy_of(observers)));
  introduce(flags.engine.model);
  log_memory(server->plan);
  warn_if_closed(flags, facts.container);
  EnginePlan& plan = server->plan;
  ServedModel& model = *server->model;
  Metrics& metrics = *server->metrics;
  Fronts& fronts = *server->fronts;
  const std::string name = served_names(flags, server->files->name).front();
  ModelFingerprint weights(*server->files);
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<EngineHost> host,
                         start_ranks(flags, plan, std::move(facts), observers.manager));
  model.max_model_len = plan.model.limits.max_model_len;
  SHOAL_ASSIGN_OR_RETURN(std::string fingerprint, finish(weights, flags, *host));
  const Scheduling scheduling = scheduling_of(flags, plan);
  InferenceLoop loop(
      model, plan.model.limits, [&host](const StepPlan& step) { return host->step(step); },
      scheduling, metrics.book());
  const MeasuredEngine measured(
      metrics, {[&loop] { return loop.load(); }, [&host] { return host->ranks_state(); }});
  fronts.set_ready(&model, &loop, deployment_of(plan, scheduling, *host, std::move(fingerprint)));
  server->signals->started();
  say_ready(ready_line(fronts, name, plan, *host, seconds_since(start)), observers);
  fronts.say_how_to_ask(flags.http);
  const Status status = serve_until_stopped(
      {fronts, loop, *host, observers, flags.shutdown_grace_s, flags.shutdown_timeout_s},
      *server->signals);
  host->log_summary();
  const Ending ending = host->ending(status);
  // Before the loop is destroyed, because the calls use it.
  end_fronts(fronts, status.ok() ? kGoodbyeMs : kFailedGoodbyeMs, exit_code(ending),
             *server->watchdog);
  return ending;
}

/// Observers first, because no process may be started while the environment has what is theirs.
Ending serve_observed(const ServeFlags& flags, Introduction introduce) {
  Observers observers;
  if (!flags.set_elsewhere.empty())
    log_info(cat("not from the command line: ", flags.set_elsewhere));
  SHOAL_ASSIGN_OR_RETURN(observers.ready_file,
                         at(Stage::kRequest, ReadyFile::prepare(flags.ready_file)));
  observers.manager.starting(flags.engine.transport.startup_timeout_s + kModelSeconds);
  Ending ending = serve(flags, observers, introduce);
  if (ending.ok()) log_info("stopped", {{"event", "stopped"}});
  return ending;
}

/// Free ports instead of those of the flags, because a server may have them.
void take_free_ports(ServeFlags* flags) {
  flags->grpc_port = 0;
  flags->http.uds.clear();
  if (*flags->http.port >= 0) flags->http.port = 0;
  if (flags->health_port) flags->health_port = 0;
}

/// A rehearsal that a signal ends has shown nothing, so that it must not end with 0.
void end_rehearsal(int signal) {
  end_children_at_once();
  ::_exit(128 + signal);
}

}  // namespace

Ending rehearse_serve(ServeFlags flags, TransportReport* report, std::string* memory) {
  take_free_ports(&flags);
  report->world_size = flags.engine.tensor_parallel_size;
  SHOAL_ASSIGN_OR_RETURN(
      report->facts,
      at(Stage::kStart, facts_for(&flags.engine.transport, flags.engine.tensor_parallel_size)));
  report->order = flags.engine.transport.order;
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, ReadyFile::check(flags.ready_file)));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<PreparedServer> server,
                         prepare(flags, &report->facts, end_rehearsal));
  *memory = server->plan.describe_memory();
  const std::optional<Failure> failure =
      EngineHost::rehearse(server->plan, flags.engine, report->facts, report);
  return failure ? Ending{failure->why, Stage::kStart, failure->fault} : Ending{};
}

int run_serve(const ServeFlags& flags, Introduction introduce) {
  return report_failure(serve_observed(flags, introduce));
}

}  // namespace shoal
