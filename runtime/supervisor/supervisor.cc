#include "runtime/supervisor/supervisor.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/base/counted.h"
#include "runtime/base/number_text.h"
#include "runtime/base/wait.h"
#include "runtime/supervisor/group_birth.h"

namespace shoal {
namespace {

/// How often a pause looks whether it was given up.
constexpr int kLookMs = 50;
/// With less time than this no try is made.
constexpr double kShortestTrySeconds = 0.2;

/// Whether a request of the step may have caused this. The kernel ends a rank for want of memory
/// where a request may have taken it, but what comes from outside is no request's doing.
bool may_be_of_a_request(Fault fault) {
  return fault != Fault::kHeldUp && fault != Fault::kOutside;
}

/// The failure, with what we were doing about it in front.
Failure while_doing(const Failure& failure, std::string what) {
  Failure outer = failure;
  outer.why = failure.why.while_doing(std::move(what));
  return outer;
}

}  // namespace

/// The pauses between two tries of a start that meets a shortage.
class Supervisor::Pause {
 public:
  /// In seconds.
  double next() {
    ++tries_;
    return std::exchange(seconds_, std::min(2 * seconds_, kMostSeconds));
  }
  int tries() const { return tries_; }

 private:
  static constexpr double kMostSeconds = 2;
  double seconds_ = 0.1;
  int tries_ = 0;
};

Supervisor::Supervisor(SupervisorOptions options, HostFacts facts)
    : options_(std::move(options)),
      ladder_(options_.ladder, std::move(facts), options_.group.world_size),
      policy_(options_.max_restarts),
      holders_(options_.group.start) {}

Supervisor::~Supervisor() {
  give_up();
  // End the group on the thread that started it: the kernel would kill the ranks as soon as that
  // thread ended.
  ranks_thread_.run([this] { group_.reset(); });
}

Attempt<std::unique_ptr<Supervisor>> Supervisor::start(SupervisorOptions options, HostFacts facts,
                                                       TransportReport* report) {
  std::unique_ptr<Supervisor> supervisor(new Supervisor(std::move(options), std::move(facts)));
  std::optional<Failure> failure;
  supervisor->ranks_thread_.run([&] {
    StartControl control = supervisor->new_control();
    control.deadline = sooner(control.deadline, supervisor->options_.start_by);
    failure = supervisor->try_start(control);
    if (failure) failure = supervisor->recover(*failure, control);
  });
  if (failure && report != nullptr) *report = supervisor->ladder_.report();
  if (failure) return *failure;
  return supervisor;
}

StartControl Supervisor::new_control() {
  StartControl control;
  control.deadline = Deadline::after_s(options_.group.startup_timeout_s);
  control.given_up = [this] { return given_up_.load(); };
  control.held = [this] { return holders_.held(); };
  control.on_progress = options_.hooks.on_progress;
  control.on_phase_now = options_.hooks.on_phase_now;
  control.on_left_behind = [this](int rank, pid_t process) { holders_.left_behind(rank, process); };
  control.channels = &channels_;
  return control;
}

void Supervisor::publish_report() {
  const std::lock_guard lock(state_mutex_);
  report_ = ladder_.report();
}

/// Call it with mutex_ held, while no restart runs.
void Supervisor::note_step_times() {
  const std::vector<double> now = group_->collective_seconds();
  std::optional<GroupWaits> waits = group_->waits();
  const std::lock_guard lock(state_mutex_);
  for (size_t rank = 0; rank < now.size(); ++rank)
    collective_s_[rank] = collective_s_before_[rank] + now[rank];
  report_.waits = std::move(waits);
}

/// Runs on the ranks' thread.
std::optional<Failure> Supervisor::try_start(const StartControl& control) {
  Attempt<std::unique_ptr<WorkerGroup>> group = ladder_.start(options_.group, control);
  const std::optional<Failure> failure =
      group.ok() ? std::nullopt : std::optional<Failure>(group.failure());
  if (!failure) {
    group_ = std::move(group).value();
    policy_.started(seconds_since(origin_));
    PhaseSeconds phases = group_->start_phases();
    phases.insert(ladder_.front_phases().begin(), ladder_.front_phases().end());
    const std::lock_guard lock(state_mutex_);
    start_phases_ = std::move(phases);
    collective_s_.resize(static_cast<size_t>(options_.group.world_size));
    collective_s_before_ = collective_s_;
  }
  // A try that has failed takes its channels along.
  if (ladder_.has_run()) stock_channels(options_.group.world_size, &channels_);
  if (options_.hooks.on_start_over) options_.hooks.on_start_over();
  publish_report();
  return failure;
}

/// Nullopt: nothing forbids another start. Otherwise what ends the supervision.
std::optional<Failure> Supervisor::refuse_start(const Failure& failure, const StartControl& control,
                                                const Pause& pause) {
  // Asked even if no restart is granted, because the answer may also be why the ranks were lost.
  const Status may = options_.hooks.may_restart ? options_.hooks.may_restart(control) : Status();
  // That it was given up is said below, with why the ranks were lost.
  if (!may.ok() && may.fault() != Fault::kGivenUp)
    return Failure{may, failure.phase, kFrontRank, may.fault()};
  if (control.deadline.passed()) {
    const std::string ended =
        failure.fault == Fault::kShortage ? holders_.ended_text(failure.rank) : "";
    return while_doing(
        failure, cat("the start has taken ", options_.ladder.names.startup_timeout, ", ",
                     with_digits(options_.group.startup_timeout_s, 6), " s, with ",
                     counted(ladder_.report().restart_count, "restart"),
                     pause.tries() > 0 ? cat(", in which ", counted(pause.tries(), "try", "tries"),
                                             " met a shortage")
                                       : "",
                     ended.empty() ? "" : "; ", ended));
  }
  if (options_.max_restarts == 0) return failure;
  if (control.given_up()) {
    return Failure{failure.why.because_of(Code::kCancelled, "the ranks are not started again"),
                   failure.phase, failure.rank, Fault::kGivenUp};
  }
  return std::nullopt;
}

/// Nullopt: the group may be started again, on the ladder's current rung, and that is counted.
/// Otherwise what ends the supervision.
std::optional<Failure> Supervisor::refuse_restart(const Failure& failure,
                                                  const StartControl& control, const Pause& pause) {
  if (!restart_may_cure(failure.fault)) return failure;
  if (std::optional<Failure> final = refuse_start(failure, control, pause)) return final;
  const RestartPolicy::Next next = policy_.failed(
      failure, ladder_.last_tried(), seconds_since(origin_), std::exchange(good_steps_, 0));
  if (next == RestartPolicy::Next::kGiveUp) {
    return while_doing(
        failure,
        cat("the ranks were started again ", counted(ladder_.report().restart_count, "time"),
            " and failed again (", options_.ladder.names.max_restarts, ")"));
  }
  if (next == RestartPolicy::Next::kNextRung) {
    if (std::optional<Failure> forbidden = ladder_.refuse_current(failure)) {
      publish_report();
      return forbidden;
    }
  }
  if (options_.hooks.on_restart)
    options_.hooks.on_restart(failure,
                              {policy_.restarts(), options_.max_restarts, policy_.last_counts()});
  return std::nullopt;
}

/// Nullopt: it is time for the next try. Otherwise what ends the supervision.
std::optional<Failure> Supervisor::wait_out(const Failure& shortage, const StartControl& control,
                                            Pause* pause) {
  const double left = control.deadline.seconds_left();
  const double seconds = std::min(pause->next(), left / 2);
  if (left > kShortestTrySeconds && options_.hooks.on_shortage)
    options_.hooks.on_shortage(shortage, seconds);
  // With no time for another try it waits for the end, which is the reason that is then given.
  const Deadline until = left > kShortestTrySeconds ? Deadline::after_s(seconds) : control.deadline;
  while (!until.passed() && !control.given_up())
    std::this_thread::sleep_for(std::chrono::milliseconds(until.remaining_ms(kLookMs)));
  return refuse_start(shortage, control, *pause);
}

/// Ends the group if its ranks would not continue what the lost ones did.
std::optional<Failure> Supervisor::refuse_other_work(const StartControl& control) {
  const Status may = options_.hooks.may_continue
                         ? options_.hooks.may_continue(group_->ready(), control)
                         : Status();
  if (may.ok()) return std::nullopt;
  group_.reset();
  return Failure{may, Phase::kLoad, kFrontRank, may.fault()};
}

/// Starts the group again for as long as the policy grants it and there is time. Otherwise returns
/// the last failure. Runs on the ranks' thread.
std::optional<Failure> Supervisor::recover(const Failure& first, const StartControl& control) {
  Failure failure = first;
  Pause pause;
  bool counted = false;  // this try is the same restart as the last one
  const RunningClock::time_point lost_at = RunningClock::now();
  if (group_) holders_.lost(group_->pids());
  for (;;) {
    if (!counted) {
      if (std::optional<Failure> final = refuse_restart(failure, control, pause)) return final;
      ladder_.add_restart(std::string(failure.why.message()));
    }
    std::optional<Failure> again = try_start(control);
    if (!again) {
      if (std::optional<Failure> other = refuse_other_work(control)) return other;
      if (options_.hooks.on_restarted)
        options_.hooks.on_restarted(ladder_.rung(), seconds_since(lost_at));
      return std::nullopt;
    }
    failure = std::move(*again);
    counted = failure.fault == Fault::kShortage && (ladder_.has_run() || holders_.any());
    if (!counted) continue;
    if (std::optional<Failure> final = wait_out(failure, control, &pause)) return final;
  }
}

/// Begins to start the lost ranks again, on their thread. Call it with mutex_ held.
void Supervisor::begin_restart(const Failure& failure) {
  {
    const std::lock_guard lock(state_mutex_);
    restarting_since_ = RunningClock::now();
    why_restarting_ = failure.why;
  }
  ranks_thread_.begin([this, failure] {
    std::optional<Failure> final = recover(failure, new_control());
    {
      const std::lock_guard lock(state_mutex_);
      lost_ = std::move(final);
      restarting_since_.reset();
    }
    restarted_.notify_all();
  });
}

/// Waits answer_s for a restart that is under way, and returns nullopt if it is over. If no restart
/// is granted, it waits until it is known why the ranks were lost.
std::optional<GroupStep> Supervisor::await_restart() {
  std::unique_lock lock(state_mutex_);
  const Deadline answer =
      options_.max_restarts == 0 ? Deadline::infinite() : Deadline::after_s(options_.answer_s);
  if (wait_until_ready(restarted_, lock, answer, [this] { return !restarting_since_; }))
    return std::nullopt;
  return GroupStep{.lost = why_restarting_};
}

Attempt<GroupStep> Supervisor::step(uint64_t number, std::string plan) {
  const std::lock_guard lock(mutex_);
  if (std::optional<GroupStep> not_yet = await_restart()) {
    lost_while_idle_ = false;  // the caller learns it now
    return std::move(*not_yet);
  }
  if (const std::optional<Failure> final = lost()) return *final;
  if (std::exchange(lost_while_idle_, false)) {
    return GroupStep{.lost = Status::error(Code::kAborted, "the ranks were lost before the step")};
  }
  Attempt<std::string> result =
      group_->step(number, std::move(plan), [this] { return given_up_.load(); });
  note_step_times();
  if (result.ok()) {
    ++good_steps_;
    return GroupStep{.result = std::move(result).value()};
  }
  if (!group_->ended()) return result.failure();  // the ranks run, but their answer was wrong
  begin_restart(result.failure());
  (void)await_restart();
  if (const std::optional<Failure> final = lost()) return *final;
  return GroupStep{.lost = result.failure().why,
                   .blames_requests = may_be_of_a_request(result.failure().fault),
                   .begun = true};
}

std::optional<Failure> Supervisor::watch() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (restarting_s() > 0) return std::nullopt;
  // Also while a step runs, so that a restart that has failed is never taken for one that is over.
  if (std::optional<Failure> final = lost()) return final;
  if (!lock.owns_lock()) return std::nullopt;
  const std::optional<Failure> failure = group_->watch(Deadline::after_ms(0));
  note_step_times();
  if (!failure) return std::nullopt;
  lost_while_idle_ = true;
  begin_restart(*failure);
  return std::nullopt;
}

double Supervisor::restarting_s() const {
  const std::lock_guard lock(state_mutex_);
  return restarting_since_ ? std::max(seconds_since(*restarting_since_), 1e-9) : 0;
}

Status Supervisor::why_restarting() const {
  const std::lock_guard lock(state_mutex_);
  return restarting_since_ ? why_restarting_ : Status();
}

std::optional<Failure> Supervisor::lost() const {
  const std::lock_guard lock(state_mutex_);
  return lost_;
}

PhaseSeconds Supervisor::start_phases() const {
  const std::lock_guard lock(state_mutex_);
  return start_phases_;
}

std::vector<double> Supervisor::collective_seconds() const {
  const std::lock_guard lock(state_mutex_);
  return collective_s_;
}

TransportReport Supervisor::report() const {
  const std::lock_guard lock(state_mutex_);
  return report_;
}

}  // namespace shoal
