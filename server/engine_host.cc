#include "server/engine_host.h"

#include <unistd.h>

#include "runtime/base/log.h"
#include "server/exit_code.h"

namespace shoal {
namespace {

/// Says how far loading is, when it has changed enough.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(ProgressStyle style) : terminal_(::isatty(STDERR_FILENO) == 1), style_(style) {}
  ~ProgressPrinter() {
    if (shown_ > 0 && terminal_) say("\r\033[K");
  }
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void operator()(const LoadProgress& progress) {
    if (progress.bytes_total <= 0) return;
    // Never backwards, though the total grows while one rank after the other reports its part.
    const int percent =
        static_cast<int>(static_cast<double>(progress.bytes_done) * 100 / static_cast<double>(progress.bytes_total));
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

/// One error from the refusals of every transport tried, the first one's reasons first.
Status no_transport(const EnginePlan& plan, const std::vector<std::pair<std::string, Status>>& refusals) {
  std::string tried;
  for (const auto& [rung, status] : refusals) tried += cat(tried.empty() ? "" : ", ", rung);
  std::vector<Cause> causes =
      Status::error(Code::kUnavailable, cat("no transport works for ", plan.world_size, " ranks (tried ", tried, ")"))
          .causes();
  for (const auto& [rung, status] : refusals) {
    for (const Cause& cause : status.causes()) causes.push_back(cause);
  }
  return Status(std::move(causes));
}

}  // namespace

Result<std::unique_ptr<EngineHost>> EngineHost::start(const EnginePlan& plan,
                                                      const std::vector<std::string>& transports,
                                                      ProgressStyle progress) {
  std::vector<std::pair<std::string, Status>> refusals;
  for (const std::string& rung : transports) {
    WorkerGroupOptions options;
    options.init = plan.init;
    options.world_size = plan.world_size;
    options.transport = rung;
    ProgressPrinter printer(progress);
    options.on_progress = [&printer](const LoadProgress& p) { printer(p); };
    Result<std::unique_ptr<WorkerGroup>> group = WorkerGroup::start(options);
    if (group.ok()) return std::unique_ptr<EngineHost>(new EngineHost(std::move(group).value()));
    const Status status = group.status();
    if (!is_transport_failure(status)) return status;
    refusals.emplace_back(rung, status.while_doing("transport " + rung));
    if (refusals.size() < transports.size()) {
      log_warning(cat("transport ", rung, " does not work, trying the next: ", status.to_string(600)));
    }
  }
  return no_transport(plan, refusals);
}

Result<StepResult> EngineHost::step(const StepPlan& plan) {
  const std::lock_guard lock(mutex_);
  return group_->step(plan);
}

Status EngineHost::watch() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() ? group_->watch(Deadline::after_ms(0)) : Status();
}

int64_t EngineHost::weight_bytes() const {
  int64_t sum = 0;
  for (const WorkerReady& rank : group_->ready()) sum += rank.weight_bytes;
  return sum;
}

ServedModel make_served_model(const ModelFiles& files, Tokenizer tokenizer, const EnginePlan& plan, uint64_t seed) {
  return {files.name, files.config, files.generation, std::move(tokenizer), plan.limits.max_model_len, seed};
}

}  // namespace shoal
