#include "server/host/engine_host.h"

#include <algorithm>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/kv_block.h"
#include "runtime/base/log.h"
#include "runtime/base/terminal.h"
#include "runtime/base/thread_pool.h"
#include "runtime/transport/needs/process_budget.h"
#include "runtime/transport/remedy.h"
#include "runtime/transport/report_text.h"
#include "server/host/device_choice.h"
#include "server/host/start_log.h"

namespace shoal {
namespace {

/// The front ends a group whose step hangs long before this (--step-timeout). This limit is for the
/// case that the front itself hangs.
constexpr int64_t kCollectiveTimeoutMs = 3'600'000;

/// Prints how far loading is whenever this has changed enough.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(ProgressStyle style)
      : terminal_(is_terminal(STDERR_FILENO)), style_(style) {}
  ~ProgressPrinter() { show_progress_line(""); }
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void operator()(int percent) {
    // The number never goes back, although the total grows while one rank after the other reports
    // its part.
    const int step = terminal_ ? 1 : 10;
    const double pause_s = terminal_ ? 0.05 : 0.5;
    if (percent / step <= shown_ / step || seconds_since(shown_at_) < pause_s) return;
    shown_ = percent;
    shown_at_ = Clock::now();
    if (terminal_) {
      show_progress_line(cat("loading ", percent, " %"));
    } else if (style_ == ProgressStyle::kLogged) {
      log_loading(percent / step * step);
    }
  }

  /// The phase that the ranks are in, and for how long. Loading has its percentage instead.
  void operator()(Phase phase, double seconds) {
    if (seconds < kSlowSeconds || (phase == Phase::kLoad && shown_ > 0)) return;
    const bool same = slow_ == phase;
    if (terminal_) {
      if (same && seconds_since(shown_at_) < kSlowSeconds) return;
      show_progress_line(cat(phase_meaning(phase), " for ", static_cast<int>(seconds), " s"));
    } else if (!same && style_ == ProgressStyle::kLogged) {
      log_slow_phase(phase, kSlowSeconds);
    }
    slow_ = phase;
    shown_at_ = Clock::now();
  }

 private:
  static constexpr int kSlowSeconds = 1;

  const bool terminal_;
  const ProgressStyle style_;
  int shown_ = 0;              // percent
  std::optional<Phase> slow_;  // the last one that was shown
  Clock::time_point shown_at_ = Clock::now();
};

SupervisorHooks hooks_for(ProgressStyle style, std::function<void(int)> on_loading) {
  SupervisorHooks hooks;
  // One printer per start, because its end clears the line.
  auto printer = std::make_shared<std::optional<ProgressPrinter>>();
  hooks.on_progress = [printer, style, on_loading = std::move(on_loading)](const LoadProgress& p) {
    if (p.bytes_total <= 0) return;
    const int percent = static_cast<int>(static_cast<double>(p.bytes_done) * 100 /
                                         static_cast<double>(p.bytes_total));
    if (!*printer) printer->emplace(style);
    (**printer)(percent);
    on_loading(percent);
  };
  hooks.on_phase_now = [printer, style](Phase phase, double seconds) {
    if (!*printer) printer->emplace(style);
    (**printer)(phase, seconds);
  };
  hooks.on_start_over = [printer] { printer->reset(); };
  hooks.on_restart = log_lost;
  hooks.on_restarted = log_recovered;
  hooks.on_shortage = log_shortage;
  return hooks;
}

Result<std::vector<ModelReady>> decode_all(const std::vector<std::string>& ready) {
  std::vector<ModelReady> ranks;
  for (const std::string& about : ready) {
    SHOAL_ASSIGN_OR_RETURN(ranks.emplace_back(),
                           decode<ModelReady>(about, "report of a model's rank"));
  }
  return ranks;
}

/// The ranks have loaded from the files: they must have taken the same, and have loaded what the
/// first ranks did, and what stays mapped must be the same too.
Status check_loaded(ModelWatch& model, const std::vector<ModelReady>& ranks, Deadline deadline,
                    const std::function<bool()>& given_up = {}) {
  SHOAL_RETURN_IF_ERROR(check_alike(ranks));
  std::vector<uint64_t> sums;
  for (const ModelReady& rank : ranks) sums.push_back(rank.weight_sum);
  return model.loaded(sums, deadline, given_up);
}

/// Restarted ranks read the model's files again.
void watch_model(ModelWatch& model, SupervisorHooks* hooks) {
  hooks->may_restart = [&model](const StartControl& start) {
    return model.look(start.deadline, start.given_up);
  };
  hooks->may_continue = [&model](const std::vector<std::string>& ready, const StartControl& start) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<ModelReady> ranks, decode_all(ready));
    return check_loaded(model, ranks, start.deadline, start.given_up);
  };
}

/// The first look at the model's files, which is shown like the phases of the ranks.
Attempt<std::unique_ptr<ModelWatch>> first_look(const EnginePlan& plan, Deadline deadline,
                                                const SupervisorHooks& hooks) {
  const Clock::time_point begun = Clock::now();
  Result<std::unique_ptr<ModelWatch>> model = ModelWatch::start(plan.files, deadline, [&] {
    if (hooks.on_phase_now) hooks.on_phase_now(Phase::kLook, seconds_since(begun));
    return false;  // a signal ends the process
  });
  if (hooks.on_start_over) hooks.on_start_over();
  if (!model.ok()) return Failure{model.status(), Phase::kLook, kFrontRank, model.status().fault()};
  return std::move(model).value();
}

/// Whether there are no ranks because something that the first start had is gone: a resource, or
/// the program's file.
bool cannot_start_again(const Failure& failure) {
  return failure.why.code() == Code::kResourceExhausted || failure.fault == Fault::kShortage ||
         (failure.phase == Phase::kSpawn && failure.rank == kFrontRank &&
          failure.fault == Fault::kOwn);
}

/// Why the ranks of a running engine cannot go on. What its end is about is the ranks, not a
/// request or a flag: ABORTED is put in front, so that neither a client nor the exit code takes it
/// for the caller's fault. INVALID_ARGUMENT is a bug of ours.
Status lost_for_good(const Failure& failure) {
  const Code code = failure.why.code();
  if (cannot_start_again(failure))
    return failure.why.because_of(Code::kAborted, "the ranks are lost and cannot be started again");
  return code == Code::kInvalidArgument
             ? failure.why.because_of(Code::kInternal, "the ranks cannot go on")
             : failure.why;
}

/// The address space that a rank's heap takes while it loads, about. No plan counts it.
constexpr int64_t kHeapOfWork = int64_t{4} << 20;

/// The ranks with their teams of threads, and three threads of the front: one watches the model's
/// files, one starts ranks, and one runs steps.
ProcessNeed process_need(const EnginePlan& plan) {
  constexpr int64_t kOfTheFront = 3;
  const int64_t ranks = plan.world_size;
  ProcessNeed need{ranks * plan.model.threads + kOfTheFront, 0};
  // A rank maps the files whole, and packs its weights beside them.
  for (const CheckpointLayout::File& file : plan.model.checkpoint.files)
    need.address_space_bytes += static_cast<int64_t>(file.bytes);
  need.address_space_bytes += plan.model.device == DeviceKind::kCuda
                                  ? plan.memory.host_bytes / ranks
                                  : plan.memory.largest_weight_bytes +
                                        (plan.kv_bytes() + plan.memory.activation_bytes) / ranks;
  return need;
}

/// The memory of the host that the model takes.
int64_t host_bytes(const EnginePlan& plan) {
  if (plan.model.device == DeviceKind::kCuda) return plan.memory.host_bytes;
  return plan.memory.weight_bytes + plan.kv_bytes() + plan.memory.activation_bytes;
}

/// What forbids a start before anything is made.
std::optional<Failure> why_not(const EnginePlan& plan, const DeviceFlags& device,
                               const HostFacts& facts) {
  if (const Status refused = check_processes(process_need(plan), facts); !refused.ok())
    return Failure{refused, Phase::kBudget};
  if (plan.model.device != DeviceKind::kCuda) return std::nullopt;
  if (const Status refused = check_for_model(device, facts.gpu); !refused.ok())
    return Failure{refused, Phase::kProbe, kFrontRank, Fault::kTransport};
  return std::nullopt;
}

/// What decides how the ranks are started, and over what, apart from what they load.
SupervisorOptions supervisor_options(const EnginePlan& plan, const EngineFlags& flags,
                                     const GpuFacts& gpu) {
  SupervisorOptions options;
  options.ladder = ladder_options(flags.transport, plan.world_size, host_bytes(plan));
  options.group.start.cpus = plan.cpus;
  options.group.start.collective_timeout_ms = kCollectiveTimeoutMs;
  for (const CheckpointLayout::File& file : plan.model.checkpoint.files)
    options.group.work_fds.push_back(file.fd);
  set_device(flags.transport.device, gpu, &options.group.start);
  options.group.world_size = plan.world_size;
  options.group.startup_timeout_s = flags.transport.startup_timeout_s;
  options.start_by = sooner(plan.start_by, Deadline::after_s(flags.transport.startup_timeout_s));
  options.group.step_timeout_s = flags.transport.step_timeout_s;
  options.max_restarts = flags.max_restarts;
  return options;
}

/// Takes over the number of blocks that the ranks have found room for.
void lower_kv_blocks(int32_t blocks, EnginePlan* plan) {
  EngineLimits& limits = plan->model.limits;
  if (blocks >= limits.kv_blocks) return;
  const int32_t planned = std::exchange(limits.kv_blocks, blocks);
  const std::string what = cat(
      "the GPUs have room for ", counted(blocks, "block"), " of KV cache instead of the ", planned,
      " planned, because the plan leaves out what CUDA, the transport and others take");
  // That is usual. What it must not do unseen is to shorten what a request can have.
  const bool shorter = limits.max_model_len > blocks * kBlockTokens;
  if (shorter) limits.max_model_len = blocks * kBlockTokens;
  log_line(shorter ? LogLevel::kWarning : LogLevel::kInfo,
           shorter ? cat(what, "; the model length is ", limits.max_model_len, " now") : what,
           {{"event", "kv_cache_smaller"},
            {"kv_blocks", blocks},
            {"planned_kv_blocks", planned},
            {"max_model_len", limits.max_model_len}});
}

}  // namespace

Attempt<std::unique_ptr<EngineHost>> EngineHost::start(EnginePlan& plan, const EngineFlags& flags,
                                                       HostFacts facts, ProgressStyle progress,
                                                       std::function<void(int)> on_loading) {
  if (std::optional<Failure> refused = why_not(plan, flags.transport.device, facts)) {
    log_remedies(remedies_of_failure(facts, plan.world_size, refused->why));
    return *std::move(refused);
  }
  SupervisorOptions options = supervisor_options(plan, flags, facts.gpu);
  const std::vector<GpuName> gpus = options.group.start.gpus;
  options.group.start.work = encode(plan.model);
  const auto told = std::make_shared<std::function<void(int)>>(std::move(on_loading));
  options.hooks = hooks_for(progress, [told](int percent) { (*told)(percent); });
  Attempt<std::unique_ptr<ModelWatch>> model = first_look(plan, options.start_by, options.hooks);
  if (!model.ok()) return model.failure();
  watch_model(**model, &options.hooks);
  Attempt<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::start(std::move(options), std::move(facts));
  *told = [](int) {};  // no rank loads now, and one that does later belongs to a restart
  if (!supervisor.ok()) {
    // If somebody wrote to the model meanwhile, that may be why.
    (void)(*model)->look(Deadline::after_ms(0));
    const Status same = (*model)->changed();
    return same.ok() ? supervisor.failure() : Failure{same, Phase::kLoad, kFrontRank, same.fault()};
  }
  std::unique_ptr<EngineHost> host(
      new EngineHost(std::move(model).value(), std::move(supervisor).value()));
  for (const GpuName& gpu : gpus)
    host->gpus_ += cat(host->gpus_.empty() ? "" : ",", gpu.number, ":", gpu.uuid, ":", gpu.name);
  const auto deadline = Deadline::after_s(flags.transport.startup_timeout_s);
  if (const Status read = host->read_ready(plan, deadline); !read.ok())
    return Failure{read, Phase::kLoad, kFrontRank, read.fault()};
  log_cost(host->report());
  return host;
}

std::optional<Failure> EngineHost::rehearse(const EnginePlan& plan, const EngineFlags& flags,
                                            HostFacts facts, TransportReport* report) {
  SupervisorOptions options = supervisor_options(plan, flags, facts.gpu);
  options.group.start.transport_only = true;
  options.group.start.trial_threads = plan.model.threads;
  options.group.start.trial_bytes = process_need(plan).address_space_bytes + kHeapOfWork;
  options.ladder.names.remedy_hint.clear();  // the remedy is in the report
  options.ladder.on_refused = nullptr;       // and so are the refusals
  *report = Ladder(options.ladder, facts, plan.world_size).report();
  if (std::optional<Failure> refused = why_not(plan, flags.transport.device, facts)) return refused;
  // In the place of the thread that would run the steps.
  const Result<std::unique_ptr<ThreadPool>> steps = ThreadPool::start(2);
  if (!steps.ok()) return Failure{steps.status(), Phase::kSpawn};
  const Attempt<std::unique_ptr<ModelWatch>> model =
      first_look(plan, options.start_by, options.hooks);
  if (!model.ok()) return model.failure();
  const Attempt<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::start(std::move(options), std::move(facts), report);
  if (!supervisor.ok()) return supervisor.failure();
  *report = (*supervisor)->report();
  return std::nullopt;
}

Status EngineHost::read_ready(EnginePlan& plan, Deadline deadline) {
  int32_t blocks = plan.model.limits.kv_blocks;
  int64_t least_bytes = INT64_MAX;
  SHOAL_ASSIGN_OR_RETURN(const std::vector<ModelReady> ranks, decode_all(supervisor_->ready()));
  SHOAL_RETURN_IF_ERROR(check_loaded(*model_, ranks, deadline));
  std::vector<KvRoom> rooms;
  for (const ModelReady& rank : ranks) {
    if (rank.room) rooms.push_back(*rank.room);
    kernels_ = rank.kernels;
    arithmetic_ = rank.arithmetic;
    plan.model.tensor_cores = rank.tensor_cores;
    weight_bytes_ += rank.weight_bytes;
    blocks = rank.kv_blocks;
    least_bytes = std::min(least_bytes, rank.weight_bytes + rank.kv_bytes);
  }
  lower_kv_blocks(blocks, &plan);
  for (const std::string& line : describe_device_memory(rooms, blocks)) log_info(line);
  // Ranks that are started again must have what the sequences then count on, wherever it comes
  // from.
  plan.model.least_kv_blocks = blocks;
  plan.model.least_device_bytes = least_bytes;
  plan.model.device_memory_share = 1;
  supervisor_->set_work(encode(plan.model));
  return {};
}

void EngineHost::log_summary() const {
  const std::optional<GroupWaits> waits = report().waits;
  if (!waits || !waits->last) return;
  log_info(cat("in the last minute of steps ", to_text(waits)),
           {{"event", "waits"}, {"slow_rank", waits->last->rank}, {"share", waits->last->share}});
}

/// The ranks are not up while lost ones are on their way back, and once they are lost for good.
RanksState EngineHost::ranks_state() const {
  return {restarting_s() == 0 && !supervisor_->lost(), report(), supervisor_->start_phases(),
          supervisor_->collective_seconds()};
}

Result<StepOutcome> EngineHost::step(const StepPlan& plan) {
  Attempt<GroupStep> step = supervisor_->step(plan.step, encode(plan));
  if (!step.ok()) (void)look_at_model();  // if it has changed, that may be why it cannot be loaded
  // Asked after the step, so that nothing is delivered that was computed from other weights.
  SHOAL_RETURN_IF_ERROR(model_->changed());
  if (step.ok() && step->result) {
    SHOAL_ASSIGN_OR_RETURN(StepResult result, decode<StepResult>(*step->result, "step result"));
    return StepOutcome(std::move(result));
  }
  if (step.ok()) return StepOutcome(std::move(step->lost), step->blames_requests, step->begun);
  return lost_for_good(step.failure());
}

Status EngineHost::watch() {
  const std::optional<Failure> failure = supervisor_->watch();
  if (failure) (void)look_at_model();
  SHOAL_RETURN_IF_ERROR(model_->changed());
  return failure ? lost_for_good(*failure) : Status();
}

Ending EngineHost::ending(const Status& status) const {
  if (status.fault() == Fault::kModelChanged) return at(Stage::kRun, status);
  const std::optional<Failure> lost = supervisor_->lost();
  const bool at_start = lost && lost->fault == Fault::kOwn && lost->phase < Phase::kStep &&
                        !cannot_start_again(*lost);
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
  return {.name = files.name,
          .dir = files.dir,
          .config = files.config,
          .generation = files.generation,
          .tokenizer = std::move(tokenizer),
          .max_model_len = plan.model.limits.max_model_len,
          .default_seed = seed};
}

}  // namespace shoal
