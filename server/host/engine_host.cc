#include "server/host/engine_host.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/supervisor/gpu_probe.h"
#include "runtime/transport/facts/stale_segments.h"
#include "runtime/transport/needs/process_budget.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

constexpr const char* kShmDir = "/dev/shm";
/// The memory that the ranks' processes use before they have loaded anything: 3 MiB each, and the
/// self-test's buffers. These hold every rank's part of a message of 1 MiB, the expected sum and
/// the actual one.
int64_t ranks_bytes(int world_size) {
  return int64_t{world_size} * (3 + world_size + 2) << 20;
}
/// The time that devices have to answer. Creating contexts on eight of them takes some seconds.
constexpr double kGpuSeconds = 20;
/// The front ends a group whose step hangs long before this (--step-timeout). This limit is for the
/// case that the front itself hangs.
constexpr int64_t kCollectiveTimeoutMs = 3'600'000;

/// Prints how far loading is whenever this has changed enough.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(ProgressStyle style)
      : terminal_(::isatty(STDERR_FILENO) == 1), style_(style) {}
  ~ProgressPrinter() {
    if (shown_ > 0 && terminal_) (void)write_stderr("\r\033[K");
  }
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void operator()(const LoadProgress& progress) {
    if (progress.bytes_total <= 0) return;
    // The number never goes back, although the total grows while one rank after the other reports
    // its part.
    const int percent = static_cast<int>(static_cast<double>(progress.bytes_done) * 100 /
                                         static_cast<double>(progress.bytes_total));
    const int step = terminal_ ? 1 : 10;
    const double pause_s = terminal_ ? 0.05 : 0.5;
    if (percent / step <= shown_ / step || seconds_since(shown_at_) < pause_s) return;
    shown_ = percent;
    shown_at_ = Clock::now();
    if (terminal_) {
      (void)write_stderr(cat("\rloading ", percent, " %"));
    } else if (style_ == ProgressStyle::kLogged) {
      log_info(cat("loading ", percent / step * step, " %"));
    }
  }

 private:
  const bool terminal_;
  const ProgressStyle style_;
  int shown_ = 0;  // percent
  Clock::time_point shown_at_ = Clock::now();
};

/// Logs the first line of the report, and the first remedy if the transport is degraded. The
/// refusals have already been logged one by one.
void log_transport(const TransportReport& report) {
  const std::string text = to_text(report);
  log_info(text.substr(0, text.find('\n')));
  if (!report.degraded() || report.remedies.empty()) return;
  const Remedy& first = report.remedies.front();
  log_warning(cat("running over ", report.rung, " instead of ", report.order.front(),
                  "; what helps here (", first.kind, "): ", first.title, ": ", first.text));
}

}  // namespace

HostFacts facts_for(const TransportFlags& flags, int world_size) {
  if (flags.clean_stale) {
    const Result<SweepResult> swept = remove_stale(kShmDir);
    if (!swept.ok()) {
      log_warning(cat("--clean-stale: ", swept.status().to_string()));
    } else {
      log_info(cat("--clean-stale: removed ", swept->removed, " files (", swept->bytes,
                   " bytes) from ", kShmDir, ", kept ", swept->kept.size()));
    }
  }
  FactsRequest request;
  if (world_size > 1) {
    request.probe_bytes = find_rung(flags.order.front())->need(world_size).dev_shm_bytes();
  } else {
    request.probe_cma = false;
  }
  HostFacts facts = gather_host_facts(request);
  if (!facts.proc_mounted)
    log_warning("/proc is not mounted: limits of memory and processes of a container are not seen");
  if (flags.device.kind == DeviceKind::kCuda && world_size > 1) {
    log_info("--device cuda: ranks move their sums on GPUs; the model is computed on the CPU");
    probe_gpus({flags.device.cuda_module, flags.device.nccl_library, world_size,
                flags.device.ranks_per_gpu, std::min(kGpuSeconds, flags.startup_timeout_s / 4)},
               &facts.gpu);
  }
  return facts;
}

void set_device(const DeviceFlags& flags, RankStart* start) {
  start->device = flags.kind;
  start->ranks_per_gpu = flags.ranks_per_gpu;
  start->cuda_module = flags.cuda_module;
  start->nccl_library = flags.nccl_library;
  start->reproducible = flags.reproducible;
}

LadderOptions ladder_options(const TransportFlags& flags, int world_size, int64_t reserved_bytes) {
  LadderOptions options;
  options.order = flags.order;
  options.degrade_on_shm_shortage = flags.degrade_on_shm_shortage;
  options.min_transport = flags.min_transport;
  options.budget = {static_cast<int64_t>(flags.shm_headroom_bytes),
                    reserved_bytes + ranks_bytes(world_size)};
  options.reproducible = flags.device.reproducible;
  if (flags.device.kind == DeviceKind::kCuda) options.nccl = read_nccl_user_settings();
  options.names = {"--on-shm-shortage=fail", "--min-transport", "--startup-timeout",
                   "--max-restarts"};
  options.on_refused = [](const Refusal& refusal, const std::string& next) {
    log_warning(cat("transport ", refusal.rung, " refused (", phase_name(refusal.phase),
                    "), trying ", next, ": ", refusal.status.to_string(600)));
  };
  return options;
}

namespace {

SupervisorHooks hooks_for(ProgressStyle style) {
  SupervisorHooks hooks;
  // One printer per start, because its end clears the line.
  auto printer = std::make_shared<std::optional<ProgressPrinter>>();
  hooks.on_progress = [printer, style](const LoadProgress& p) {
    if (!*printer) printer->emplace(style);
    (**printer)(p);
  };
  hooks.on_start_over = [printer] { printer->reset(); };
  hooks.on_restart = [](const Failure& why, int restart, int max_restarts) {
    log_warning(cat("starting the ranks again (", restart, " of ", max_restarts,
                    "): ", why.why.to_string(900)));
  };
  hooks.on_restarted = [](const std::string& rung, double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", seconds);
    log_info(cat("the ranks run again over ", rung, " after ", text, " s"));
  };
  hooks.on_shortage = [](const Failure& why, double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", seconds);
    log_warning(cat("something is short, so the ranks cannot be started yet (",
                    phase_name(why.phase), "); next try in ", text,
                    " s: ", why.why.to_string(600)));
  };
  return hooks;
}

/// Restarted ranks read the model's files again, so these must be the same before and afterwards.
void watch_model(ModelWatch& model, SupervisorHooks* hooks) {
  hooks->may_restart = [&model] { return model.look(); };
  hooks->on_restarted = [&model, log = hooks->on_restarted](const std::string& rung,
                                                            double seconds) {
    (void)model.look();  // step() asks for the answer
    log(rung, seconds);
  };
}

/// Why the ranks of a running engine cannot go on. RESOURCE_EXHAUSTED is about the ranks here, not
/// about a request or a flag, and it ends in lost ranks: ABORTED is put in front, so that neither a
/// client nor the exit code takes it for the caller's fault. INVALID_ARGUMENT is a bug of ours, or
/// a model that has changed (ending()).
Status lost_for_good(const Failure& failure) {
  const Code code = failure.why.code();
  if (code == Code::kResourceExhausted || failure.fault == Fault::kShortage)
    return failure.why.because_of(Code::kAborted, "the ranks are lost and cannot be started again");
  return code == Code::kInvalidArgument
             ? failure.why.because_of(Code::kInternal, "the ranks cannot go on")
             : failure.why;
}

/// The ranks with their teams of threads, and two threads of the front: the one that starts ranks
/// and the one that runs steps.
ProcessNeed process_need(const EnginePlan& plan) {
  constexpr int64_t kOfTheFront = 2;
  const int64_t ranks = plan.world_size;
  return {
      ranks * plan.model.threads + kOfTheFront,
      plan.memory.largest_weight_bytes + (plan.kv_bytes() + plan.memory.activation_bytes) / ranks};
}

}  // namespace

Attempt<std::unique_ptr<EngineHost>> EngineHost::start(const EnginePlan& plan,
                                                       const EngineFlags& flags, HostFacts facts,
                                                       ProgressStyle progress) {
  if (const Status refused = check_processes(process_need(plan), facts); !refused.ok())
    return Failure{refused, Phase::kBudget};
  SupervisorOptions options;
  options.ladder =
      ladder_options(flags.transport, plan.world_size,
                     plan.memory.weight_bytes + plan.kv_bytes() + plan.memory.activation_bytes);
  options.group.start.cpus = plan.cpus;
  options.group.start.collective_timeout_ms = kCollectiveTimeoutMs;
  options.group.start.work = encode(plan.model);
  for (const CheckpointLayout::File& file : plan.model.checkpoint.files)
    options.group.work_fds.push_back(file.fd);
  set_device(flags.transport.device, &options.group.start);
  options.group.world_size = plan.world_size;
  options.group.startup_timeout_s = flags.transport.startup_timeout_s;
  options.group.step_timeout_s = flags.transport.step_timeout_s;
  options.max_restarts = flags.max_restarts;
  options.hooks = hooks_for(progress);
  Result<std::unique_ptr<ModelWatch>> model = ModelWatch::start(plan.files);
  if (!model.ok()) return Failure{model.status()};
  watch_model(**model, &options.hooks);
  Attempt<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::start(std::move(options), std::move(facts));
  if (!supervisor.ok()) return supervisor.failure();
  std::unique_ptr<EngineHost> host(
      new EngineHost(std::move(model).value(), std::move(supervisor).value()));
  // What the ranks have loaded is the model if nobody wrote to it meanwhile.
  if (const Status same = host->model_->look(); !same.ok()) return Failure{same};
  if (const Status read = host->read_ready(); !read.ok()) return Failure{read};
  log_transport(host->report());
  return host;
}

Status EngineHost::read_ready() {
  for (const std::string& about : supervisor_->ready()) {
    SHOAL_ASSIGN_OR_RETURN(const ModelReady rank,
                           decode<ModelReady>(about, "report of a model's rank"));
    kernels_ = rank.kernels;
    weight_bytes_ += rank.weight_bytes;
  }
  return {};
}

Result<StepOutcome> EngineHost::step(const StepPlan& plan) {
  Attempt<GroupStep> step = supervisor_->step(plan.step, encode(plan));
  // Asked after the step, so that nothing is delivered that was computed from other weights.
  SHOAL_RETURN_IF_ERROR(model_->changed());
  if (step.ok() && step->result) {
    SHOAL_ASSIGN_OR_RETURN(StepResult result, decode<StepResult>(*step->result, "step result"));
    return StepOutcome(std::move(result));
  }
  if (step.ok()) {
    return StepOutcome(std::move(step->lost), step->blames_requests);
  }
  return lost_for_good(step.failure());
}

Status EngineHost::watch() {
  const std::optional<Failure> failure = supervisor_->watch();
  SHOAL_RETURN_IF_ERROR(model_->changed());
  return failure ? lost_for_good(*failure) : Status();
}

Ending EngineHost::ending(const Status& status) const {
  const std::optional<Failure> lost = supervisor_->lost();
  // A restart that meets a shortage ends in lost ranks, because the first start did not meet it.
  const bool at_start = lost && lost->fault == Fault::kOwn && lost->phase < Phase::kStep &&
                        lost->why.code() != Code::kResourceExhausted;
  if (status.ok() || !at_start) return at(Stage::kRun, status);
  return {lost->why, Stage::kStart, lost->fault};
}

Scheduling scheduling_of(const SchedulingFlags& flags) {
  return {.policy = flags.policy,
          .pace = {.decode_stretch = flags.decode_stretch, .max_step_s = 1e-3 * flags.max_step_ms}};
}

QueueLimits queue_limits_of(const QueueFlags& flags, int32_t max_num_seqs) {
  QueueLimits limits;
  limits.requests = flags.max_requests.value_or(max_num_seqs + kDefaultWaiting);
  if (flags.max_tokens) limits.tokens = *flags.max_tokens;
  limits.bytes = static_cast<int64_t>(std::min<uint64_t>(flags.max_bytes, INT64_MAX));
  if (flags.max_seconds > 0) limits.seconds = flags.max_seconds;
  return limits;
}

ServedModel make_served_model(const ModelFiles& files, Tokenizer tokenizer, const EnginePlan& plan,
                              std::optional<uint64_t> seed) {
  return {files.name,
          files.config,
          files.generation,
          std::move(tokenizer),
          plan.model.limits.max_model_len,
          seed};
}

}  // namespace shoal
