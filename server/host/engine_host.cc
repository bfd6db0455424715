#include "server/host/engine_host.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/supervisor/gpu_probe.h"
#include "runtime/transport/facts/stale_segments.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

constexpr const char* kShmDir = "/dev/shm";
/// What the ranks' processes take of the memory cgroup before they have loaded anything: 3 MiB
/// each, and the self-test's buffers, which hold every rank's part of a message of 1 MiB, what it
/// should come to, and what it came to.
int64_t ranks_bytes(int world_size) {
  return int64_t{world_size} * (3 + world_size + 2) << 20;
}
/// How long devices may take to answer: contexts on eight of them take some seconds.
constexpr double kGpuSeconds = 20;

/// Says how far loading is, when it has changed enough.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(ProgressStyle style)
      : terminal_(::isatty(STDERR_FILENO) == 1), style_(style) {}
  ~ProgressPrinter() {
    if (shown_ > 0 && terminal_) say("\r\033[K");
  }
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void operator()(const LoadProgress& progress) {
    if (progress.bytes_total <= 0) return;
    // Never backwards, though the total grows while one rank after the other reports its part.
    const int percent = static_cast<int>(static_cast<double>(progress.bytes_done) * 100 /
                                         static_cast<double>(progress.bytes_total));
    const int step = terminal_ ? 1 : 10;
    const double pause_s = terminal_ ? 0.05 : 0.5;
    if (percent / step <= shown_ / step || seconds_since(shown_at_) < pause_s) return;
    shown_ = percent;
    shown_at_ = Clock::now();
    if (terminal_) {
      say(cat("\rloading ", percent, " %"));
    } else if (style_ == ProgressStyle::kLogged) {
      log_info(cat("loading ", percent / step * step, " %"));
    }
  }

 private:
  static void say(std::string_view text) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  }

  const bool terminal_;
  const ProgressStyle style_;
  int shown_ = 0;  // percent
  Clock::time_point shown_at_ = Clock::now();
};

/// The report's face in the log. The refusals themselves have been said as they came.
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
  if (flags.device.kind == DeviceKind::kCuda && world_size > 1) {
    log_info("--device cuda: ranks move their sums on GPUs; the model is computed on the CPU");
    probe_gpus({flags.device.cuda_module, flags.device.nccl_library, world_size,
                flags.device.ranks_per_gpu, std::min(kGpuSeconds, flags.startup_timeout_s / 4)},
               &facts.gpu);
  }
  return facts;
}

void set_device(const DeviceFlags& flags, WorkerInit* init) {
  init->device = flags.kind;
  init->ranks_per_gpu = flags.ranks_per_gpu;
  init->cuda_module = flags.cuda_module;
  init->nccl_library = flags.nccl_library;
  init->reproducible = flags.reproducible;
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
  return options;
}

EngineHost::EngineHost(const EnginePlan& plan, const TransportFlags& flags,
                       EngineHostOptions options)
    : options_(std::move(options)),
      ladder_(
          ladder_options(flags, plan.world_size,
                         plan.memory.weight_bytes + plan.kv_bytes() + plan.memory.activation_bytes),
          options_.facts, plan.world_size),
      policy_(options_.max_restarts) {
  group_options_.init = plan.init;
  set_device(flags.device, &group_options_.init);
  group_options_.world_size = plan.world_size;
  group_options_.startup_timeout_s = flags.startup_timeout_s;
  group_options_.step_timeout_s = flags.step_timeout_s;
  group_options_.given_up = [this] { return given_up_.load(); };
}

EngineHost::~EngineHost() {
  // Where it was started, so that its ranks leave by themselves before the thread that they hang on
  // ends.
  spawner_.run([this] { group_.reset(); });
}

Result<std::unique_ptr<EngineHost>> EngineHost::start(const EnginePlan& plan,
                                                      const TransportFlags& flags,
                                                      EngineHostOptions options) {
  std::unique_ptr<EngineHost> host(new EngineHost(plan, flags, std::move(options)));
  SHOAL_RETURN_IF_ERROR(host->start_group());
  return host;
}

/// A first start, with as many attempts as restarts are granted, all of them within one
/// --startup-timeout.
Status EngineHost::start_group() {
  const Deadline deadline = start_deadline();
  GroupFailure failure;
  Status status = try_start(deadline, &failure);
  if (!status.ok()) status = failure.status.ok() ? status : recover(failure, deadline);
  if (status.ok()) log_transport(ladder_.report());
  return status;
}

void EngineHost::publish_report() {
  const std::lock_guard lock(report_mutex_);
  report_ = ladder_.report();
}

/// failure->status: ok where the ladder itself has ended.
Status EngineHost::try_start(Deadline deadline, GroupFailure* failure) {
  Status status;
  group_options_.start_deadline = deadline;
  spawner_.run([&] {
    ProgressPrinter printer(options_.progress);
    group_options_.on_progress = [&printer](const LoadProgress& p) { printer(p); };
    Result<std::unique_ptr<WorkerGroup>> group = ladder_.start(group_options_, failure);
    group_options_.on_progress = nullptr;
    status = group.status();
    if (group.ok()) group_ = std::move(group).value();
  });
  if (status.code() == Code::kUnavailable && failure->moving) failure->status = Status();
  publish_report();
  if (!status.ok()) return status;
  policy_.started(seconds_since(origin_));
  kernels_ = group_->ready().front().kernels;
  weight_bytes_ = 0;
  for (const WorkerReady& rank : group_->ready()) weight_bytes_ += rank.weight_bytes;
  return status;
}

/// Ok: the group may be started again, on the rung that the ladder now stands on. Else what is to
/// be said at the end.
Status EngineHost::grant_restart(const GroupFailure& failure, Deadline deadline) {
  // Only what restarts can cure: a model that does not load will not load the next time.
  const bool curable = failure.outside || failure.moving ||
                       failure.status.code() == Code::kAborted ||
                       failure.status.code() == Code::kDeadlineExceeded;
  if (!curable || options_.max_restarts == 0) return failure.status;
  if (deadline.passed()) {
    return failure.status.while_doing(cat("the start has taken --startup-timeout, ",
                                          group_options_.startup_timeout_s, " s, with ",
                                          policy_.restarts(), " restarts"));
  }
  if (group_options_.given_up())
    return failure.status.because_of(Code::kCancelled, "the ranks are not started again");
  const RestartPolicy::Next next = policy_.failed(failure, seconds_since(origin_));
  if (next == RestartPolicy::Next::kGiveUp) {
    return failure.status.while_doing(cat("the ranks were started again ", policy_.restarts(),
                                          " times and failed again (--max-restarts)"));
  }
  if (next == RestartPolicy::Next::kNextRung) {
    const Status allowed = ladder_.refuse_current("serving", failure.status);
    if (!allowed.ok()) publish_report();
    SHOAL_RETURN_IF_ERROR(allowed);
  }
  log_warning(cat("starting the ranks again (", policy_.restarts(), " of ", options_.max_restarts,
                  "): ", failure.status.to_string(900)));
  return {};
}

/// Starts the group again as long as the policy grants it and there is time; else the failure that
/// it does not.
Status EngineHost::recover(const GroupFailure& first, Deadline deadline) {
  GroupFailure failure = first;
  for (;;) {
    SHOAL_RETURN_IF_ERROR(grant_restart(failure, deadline));
    ladder_.add_restart(std::string(failure.status.message()));
    const Clock::time_point began = Clock::now();
    GroupFailure again;
    const Status status = try_start(deadline, &again);
    if (status.ok()) {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%.2f", seconds_since(began));
      log_info(cat("the ranks run again over ", ladder_.report().rung, " after ", seconds, " s"));
      return {};
    }
    if (again.status.ok()) return status;  // the ladder has ended
    failure = again;
  }
}

Result<StepOutcome> EngineHost::step(const StepPlan& plan) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(lost_while_idle_, false)) {
    return StepOutcome(Status::error(Code::kAborted, "the ranks were lost before the step"), false);
  }
  Result<StepResult> result = group_->step(plan);
  if (result.ok()) return StepOutcome(std::move(result).value());
  const GroupFailure failure = group_->failure();
  if (failure.status.ok()) return result.status();  // the group runs, its answer was wrong
  const Status status = recover(failure, start_deadline());
  if (status.ok()) return StepOutcome(failure.status, true);
  // What a rank lacks is not what a request may not have.
  const bool like_a_refusal =
      status.code() == Code::kResourceExhausted || status.code() == Code::kInvalidArgument;
  return like_a_refusal ? status.because_of(Code::kInternal, "the ranks cannot go on") : status;
}

Status EngineHost::watch(const std::function<bool()>& given_up) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || group_->watch(Deadline::after_ms(0)).ok()) return {};
  lost_while_idle_ = true;
  const GroupFailure failure = group_->failure();
  group_options_.given_up = [this, &given_up] { return given_up_ || given_up(); };
  const Status status = recover(failure, start_deadline());
  group_options_.given_up = [this] { return given_up_.load(); };
  return status;
}

TransportReport EngineHost::report() const {
  const std::lock_guard lock(report_mutex_);
  return report_;
}

ServedModel make_served_model(const ModelFiles& files, Tokenizer tokenizer, const EnginePlan& plan,
                              std::optional<uint64_t> seed) {
  return {
      files.name, files.config, files.generation, std::move(tokenizer), plan.limits.max_model_len,
      seed};
}

}  // namespace shoal
