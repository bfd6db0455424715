#include "runtime/supervisor/supervisor.h"

#include <utility>

namespace shoal {
namespace {

/// A restart cures only what may not happen again. A model that does not load will not load the
/// next time.
bool restart_may_cure(Fault fault) {
  switch (fault) {
    case Fault::kTransport:
    case Fault::kSharedMemory:
    case Fault::kDeath:
    case Fault::kSilence:
    case Fault::kSpinning:
    case Fault::kShortage:
    case Fault::kOutside:
    case Fault::kHeldUp:
      return true;
    case Fault::kOwn:
    case Fault::kGivenUp:
    case Fault::kPolicy:
      return false;
  }
  return false;
}

/// The failure, with what we were doing about it in front.
Failure while_doing(const Failure& failure, std::string what) {
  Failure outer = failure;
  outer.why = failure.why.while_doing(std::move(what));
  return outer;
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options, HostFacts facts)
    : options_(std::move(options)),
      ladder_(options_.ladder, std::move(facts), options_.group.world_size),
      policy_(options_.max_restarts) {}

Supervisor::~Supervisor() {
  // End the group on the thread that started it: the kernel would kill the ranks as soon as that
  // thread ended.
  spawner_.run([this] { group_.reset(); });
}

Attempt<std::unique_ptr<Supervisor>> Supervisor::start(SupervisorOptions options, HostFacts facts) {
  std::unique_ptr<Supervisor> supervisor(new Supervisor(std::move(options), std::move(facts)));
  const StartControl control = supervisor->control_until(supervisor->start_deadline());
  std::optional<Failure> failure = supervisor->try_start(control);
  if (failure) failure = supervisor->recover(*failure, control);
  if (failure) return *failure;
  return supervisor;
}

StartControl Supervisor::control_until(Deadline deadline, const GivenUp& given_up) const {
  StartControl control;
  control.deadline = deadline;
  control.given_up = [this, given_up] { return given_up_ || (given_up && given_up()); };
  control.on_progress = options_.hooks.on_progress;
  return control;
}

void Supervisor::publish_report() {
  const std::lock_guard lock(report_mutex_);
  report_ = ladder_.report();
}

std::optional<Failure> Supervisor::try_start(const StartControl& control) {
  std::optional<Failure> failure;
  spawner_.run([&] {
    Attempt<std::unique_ptr<WorkerGroup>> group = ladder_.start(options_.group, control);
    if (group.ok()) {
      group_ = std::move(group).value();
    } else {
      failure = group.failure();
    }
  });
  if (options_.hooks.on_start_over) options_.hooks.on_start_over();
  publish_report();
  if (!failure) policy_.started(seconds_since(origin_));
  return failure;
}

/// Nullopt: the group may be started again, on the ladder's current rung. Otherwise what ends the
/// supervision.
std::optional<Failure> Supervisor::refuse_restart(const Failure& failure,
                                                  const StartControl& control) {
  if (!restart_may_cure(failure.fault)) return failure;
  // Asked even if no restart is granted, because the answer may also be why the ranks were lost.
  const Status may = options_.hooks.may_restart ? options_.hooks.may_restart() : Status();
  if (!may.ok()) return Failure{may, failure.phase, kFrontRank, Fault::kOwn};
  if (options_.max_restarts == 0) return failure;
  const LimitNames& names = options_.ladder.names;
  if (control.deadline.passed()) {
    return while_doing(failure, cat("the start has taken ", names.startup_timeout, ", ",
                                    options_.group.startup_timeout_s, " s, with ",
                                    policy_.restarts(), " restarts"));
  }
  if (control.given_up()) {
    return Failure{failure.why.because_of(Code::kCancelled, "the ranks are not started again"),
                   failure.phase, failure.rank, Fault::kGivenUp};
  }
  const RestartPolicy::Next next =
      policy_.failed(failure, ladder_.last_tried(), seconds_since(origin_));
  if (next == RestartPolicy::Next::kGiveUp) {
    return while_doing(failure, cat("the ranks were started again ", policy_.restarts(),
                                    " times and failed again (", names.max_restarts, ")"));
  }
  if (next == RestartPolicy::Next::kNextRung) {
    if (std::optional<Failure> forbidden = ladder_.refuse_current(failure)) {
      publish_report();
      return forbidden;
    }
  }
  if (options_.hooks.on_restart)
    options_.hooks.on_restart(failure, policy_.restarts(), options_.max_restarts);
  return std::nullopt;
}

/// Starts the group again for as long as the policy grants it and there is time. Otherwise returns
/// the last failure.
std::optional<Failure> Supervisor::recover(const Failure& first, const StartControl& control) {
  Failure failure = first;
  for (;;) {
    if (std::optional<Failure> final = refuse_restart(failure, control)) return final;
    ladder_.add_restart(std::string(failure.why.message()));
    const Clock::time_point began = Clock::now();
    std::optional<Failure> again = try_start(control);
    if (!again) {
      if (options_.hooks.on_restarted)
        options_.hooks.on_restarted(ladder_.rung(), seconds_since(began));
      return std::nullopt;
    }
    failure = std::move(*again);
  }
}

Attempt<GroupStep> Supervisor::step(uint64_t number, std::string plan) {
  const std::lock_guard lock(mutex_);
  if (const std::optional<Failure> final = lost()) return *final;
  if (std::exchange(lost_while_idle_, false)) {
    return GroupStep{std::nullopt,
                     Status::error(Code::kAborted, "the ranks were lost before the step"), false};
  }
  Attempt<std::string> result = group_->step(number, std::move(plan));
  if (result.ok()) return GroupStep{std::move(result).value(), {}, false};
  if (!group_->ended()) return result.failure();  // the ranks run, but their answer was wrong
  const StartControl control = control_until(start_deadline());
  if (std::optional<Failure> final = lose(recover(result.failure(), control))) return *final;
  return GroupStep{std::nullopt, result.failure().why, result.failure().fault != Fault::kHeldUp};
}

std::optional<Failure> Supervisor::watch(const std::function<bool()>& given_up) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return std::nullopt;
  if (std::optional<Failure> final = lost()) return final;
  const std::optional<Failure> failure = group_->watch(Deadline::after_ms(0));
  if (!failure) return std::nullopt;
  lost_while_idle_ = true;
  return lose(recover(*failure, control_until(start_deadline(), given_up)));
}

/// Keeps the failure that ends the supervision, if there is one.
std::optional<Failure> Supervisor::lose(std::optional<Failure> final) {
  const std::lock_guard lock(report_mutex_);
  lost_ = final;
  return final;
}

std::optional<Failure> Supervisor::lost() const {
  const std::lock_guard lock(report_mutex_);
  return lost_;
}

TransportReport Supervisor::report() const {
  const std::lock_guard lock(report_mutex_);
  return report_;
}

}  // namespace shoal
