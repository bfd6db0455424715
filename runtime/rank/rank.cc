#include "runtime/rank/rank.h"

#include <signal.h>
#include <sys/prctl.h>

#include "runtime/base/cat.h"
#include "runtime/base/log.h"
#include "runtime/base/process_limit.h"
#include "runtime/base/program_path.h"
#include "runtime/base/signals.h"
#include "runtime/base/thread_pool.h"
#include "runtime/comm/device/host_collective.h"
#include "runtime/comm/device/staged_communicator.h"
#include "runtime/comm/single_communicator.h"
#include "runtime/control/descriptors.h"
#include "runtime/rank/rank_device.h"
#include "runtime/transport/self_test.h"

namespace shoal {
namespace {

/// How long a rank looks for the next step before it sleeps, because the front needs about this
/// long to plan one.
constexpr int kStepSpinUs = 60;
/// The front may be stopped for long, for example by a debugger. If it dies, a send fails at once.
constexpr int64_t kSendTimeoutMs = 3'600'000;
/// During a long phase a rank repeats its phase message this often. The front can thus tell a slow
/// rank on a busy machine from a stuck group, which is silent.
constexpr auto kStillAtIt = std::chrono::seconds(1);
/// What is shown of a front's build, which may be no build at all.
constexpr size_t kMostBuild = 64;

/// The signals on which the front acts may reach the whole process group, so a rank ignores them.
void settle_process() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : kFrontSignals) ::signal(number, SIG_IGN);
  for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  // The front blocked signals while it spawned this process.
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  set_float_environment();
}

/// Whether the front that sent this is of our build. Otherwise says of which.
bool same_build(const std::string& build) {
  if (build == program_build()) return true;
  (void)write_stderr(cat("shoal: error: a rank is of build ", program_build(),
                         " and its front of build ", build.substr(0, kMostBuild),
                         ", because the program's file was replaced; start the server again\n"),
                     kLastLineMs);
  return false;
}

Status out_of_turn() {
  return Status::error(Code::kInternal, "a control message out of turn");
}

}  // namespace

int Rank::run() {
  settle_process();
  const Result<std::string> build = channel_.receive(Deadline::infinite());
  if (build.status().code() == Code::kUnavailable) return 0;
  if (!same_build(build.ok() ? *build : "")) return kOtherBuildExitCode;
  const Status status = serve();
  failed_ = !status.ok();
  if (!failed_) return 0;
  const Status sent = send(failure_of(status));
  return sent.ok() ? 1 : 0;  // not sent: the front is gone, and this rank just ends too
}

Status Rank::serve() {
  SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> first, next(0));
  if (!first) return {};
  auto* start = std::get_if<RankStart>(&*first);
  if (start == nullptr)
    return Status::error(Code::kInternal, "the first control message is not the rank's start");
  start_ = std::move(*start);
  set_process_rank(start_.rank);
  // This is what ps, top and pgrep show. Threads that start from here on have the name too.
  ::prctl(PR_SET_NAME, cat("shoal-rank-", start_.rank).c_str());
  set_log_options(start_.log);
  test_fault_.set(start_);
  SHOAL_RETURN_IF_ERROR(test_fault_.enter(phase_name(Phase::kSpawn)));
  std::unique_ptr<ThreadPool> trial;
  if (start_.transport_only) {
    SHOAL_RETURN_IF_ERROR(reserve_address_space(start_.trial_bytes));
    SHOAL_ASSIGN_OR_RETURN(trial, ThreadPool::start(start_.trial_threads, start_.cpus));
  }
  SHOAL_RETURN_IF_ERROR(connect());
  if (!start_.transport_only) {
    SHOAL_RETURN_IF_ERROR(enter(Phase::kLoad));
    SHOAL_ASSIGN_OR_RETURN(std::string about, work_.begin(*this));
    phase_ = Phase::kIdle;
    SHOAL_RETURN_IF_ERROR(send(Ready{communicator_->name(), std::move(about)}));
  }
  return obey();
}

/// The transport comes first, because it fails in milliseconds and weights take minutes.
Status Rank::connect() {
  SHOAL_RETURN_IF_ERROR(enter(Phase::kOpen));
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, open());
  communicator_ =
      std::make_unique<WatchedCommunicator>(std::move(opened), [this] { return moved(); });
  SHOAL_RETURN_IF_ERROR(enter(Phase::kSelfTest));
  return self_test_transport();
}

/// Ranks that compute on devices need theirs whatever the transport is. If only the transport is
/// to be proven, its rung decides.
Status Rank::open_device(const Rung* rung) {
  const bool computes = start_.device == DeviceKind::kCuda && !start_.transport_only;
  if (!computes && (rung == nullptr || !rung->on_device)) return {};
  const Exchange to_all = [this](std::string mine) { return exchange(std::move(mine)); };
  Result<std::shared_ptr<Device>> device = open_rank_device(start_, to_all);
  if (!device.ok()) {
    return device.status().while_doing(rung == nullptr
                                           ? std::string("open a device")
                                           : cat("a device for transport ", start_.transport));
  }
  device_ = std::move(device).value();
  return {};
}

/// A rank that is done early waits here for those whose driver still compiles, because from here on
/// nobody may be silent for long.
Status Rank::compiled() {
  if (!start_.compiles_kernels) return {};
  SHOAL_RETURN_IF_ERROR(exchange("").status());
  return send(PhaseBegun{phase_, false});
}

Result<std::unique_ptr<Communicator>> Rank::open() {
  if (start_.world_size == 1) {
    SHOAL_RETURN_IF_ERROR(open_device(nullptr));
    SHOAL_RETURN_IF_ERROR(compiled());
    return on_device(make_single_communicator());
  }
  const Rung* rung = find_rung(start_.transport);
  if (rung == nullptr)
    return Status::error(Code::kInternal, cat("no transport ", start_.transport));
  OpenArgs args;
  args.world = {start_.rank, start_.world_size};
  if (start_.shm_bytes > 0) args.shm = Fd(kWorkerShmFd);
  if (!start_.tcp_ports.empty()) args.listener = Fd(kWorkerListenerFd);
  args.shm_bytes = start_.shm_bytes;
  args.tcp_ports = start_.tcp_ports;
  args.group_key = start_.group_key;
  args.timeout_ms = start_.collective_timeout_ms;
  args.exchange = [this](std::string mine) { return exchange(std::move(mine)); };
  args.interrupted = [this] { return still_waiting(); };
  args.waits = [this](const std::string& where) { return waits(where, 0, false); };
  SHOAL_RETURN_IF_ERROR(open_device(rung));
  SHOAL_RETURN_IF_ERROR(compiled());
  args.device = device_;
  args.nccl_library = start_.nccl_library;
  args.reproducible = start_.reproducible;
  Result<std::unique_ptr<Communicator>> opened = rung->open(std::move(args));
  if (!opened.ok()) return opened.status().while_doing(cat("open transport ", start_.transport));
  return rung->on_device ? std::move(opened) : on_device(std::move(opened).value());
}

/// Lets the rank sum on its device over a communicator that moves host memory, if it has a device.
Result<std::unique_ptr<Communicator>> Rank::on_device(std::unique_ptr<Communicator> host) {
  if (device_ == nullptr) return host;
  const std::shared_ptr<Communicator> shared = std::move(host);
  const Interrupted interrupted = [this] { return still_waiting(); };
  std::unique_ptr<DeviceCollective> collective = make_single_collective(device_);
  if (start_.world_size > 1) {
    SHOAL_ASSIGN_OR_RETURN(collective, open_host_collective(shared, device_, interrupted));
  }
  return make_staged_communicator(device_, std::move(collective), start_.collective_timeout_ms,
                                  interrupted, shared);
}

Status Rank::self_test_transport() {
  TransportVerified verified;
  if (start_.world_size > 1) {
    const Result<SelfTestFigures> figures =
        self_test(*communicator_, start_.self_test_seed, [this] { return moved(); });
    if (!figures.ok())
      return figures.status().while_doing(cat("self-test of transport ", start_.transport));
    verified = {figures->latency_us, figures->bytes_per_s, figures->noisy, figures->seconds};
  }
  return send(verified);
}

Status Rank::obey() {
  spent_told_ = communicator_->spent();  // the self-test is no step
  waited_told_ = communicator_->waited().value_or(waited_told_);
  times_told_at_ = Clock::now();
  for (;;) {
    SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> message, next(kStepSpinUs));
    if (!message || std::holds_alternative<Shutdown>(*message)) return {};
    if (std::holds_alternative<Explain>(*message)) {
      return Status::error(Code::kUnavailable, "the front has given this step up");
    }
    const auto* step = std::get_if<Step>(&*message);
    if (step == nullptr || start_.transport_only) return out_of_turn();
    SHOAL_RETURN_IF_ERROR(take_step(*step));
  }
}

Status Rank::take_step(const Step& step) {
  log_lost_lines();
  phase_ = Phase::kStep;
  step_ = step.number;
  const Clock::time_point began = Clock::now();
  said_at_ = now_();
  said_waits_ = false;
  parts_before_step_ = parts_;
  device_mark_.reset();
  SHOAL_RETURN_IF_ERROR(test_fault_.enter_step(++steps_begun_));
  SHOAL_ASSIGN_OR_RETURN(std::string result, work_.step(step.number, step.plan));
  phase_ = Phase::kIdle;
  const Clock::duration took = Clock::now() - began;
  if (start_.rank == 0) SHOAL_RETURN_IF_ERROR(send(StepDone{step.number, std::move(result)}));
  return tell_step_times(took);
}

/// Adds a step. It seldom tells, because it is only for people.
Status Rank::tell_step_times(Clock::duration step) {
  using Seconds = std::chrono::duration<double>;
  ++untold_.steps;
  untold_.seconds += Seconds(step).count();
  const Clock::time_point now = Clock::now();
  if (now - times_told_at_ < kStillAtIt) return {};
  times_told_at_ = now;
  StepTimes times = std::exchange(untold_, {});
  const Clock::duration spent = std::exchange(spent_told_, communicator_->spent());
  times.collective_seconds = Seconds(spent_told_ - spent).count();
  if (const auto waited = communicator_->waited()) {
    const Waited told = std::exchange(waited_told_, *waited);
    times.waited_seconds = Seconds(waited->all - told.all).count();
    times.waited_for_previous_seconds = Seconds(waited->for_previous - told.for_previous).count();
  }
  return send(times);
}

Status Rank::enter(Phase phase) {
  if (phase == Phase::kWarmUp) SHOAL_RETURN_IF_ERROR(exchange("").status());
  phase_ = phase;
  where_.clear();
  device_mark_.reset();
  said_at_ = now_();
  const bool compiles = phase == Phase::kOpen && start_.compiles_kernels;
  SHOAL_RETURN_IF_ERROR(send(PhaseBegun{phase, compiles}));
  return test_fault_.enter(phase_name(phase));
}

/// At most one message per percent, because progress is only for people.
Status Rank::loaded(const LoadProgress& progress) {
  const int percent = progress.bytes_total == 0
                          ? 100
                          : static_cast<int>(progress.bytes_done * 100 / progress.bytes_total);
  if (percent == loaded_percent_) return {};
  loaded_percent_ = percent;
  return send(progress);
}

Status Rank::moved() {
  where_.clear();
  device_mark_.reset();
  if (communicator_ != nullptr) communicator_->device_waits(false);
  return complete_part(false);
}

/// Tells it if that is due, or if the front does not know yet that this rank waits, or goes on.
Status Rank::complete_part(bool waits) {
  ++parts_;
  const bool in_step = phase_ == Phase::kStep;
  if (in_step)
    SHOAL_RETURN_IF_ERROR(test_fault_.complete_part(steps_begun_, parts_ - parts_before_step_));
  const Clock::duration pause =
      in_step ? std::chrono::milliseconds(start_.heartbeat_ms) : kStillAtIt;
  const bool due = now_() - said_at_ >= pause;
  const bool told = !in_step || said_waits_ == waits;
  if (pause <= Clock::duration::zero() || (!due && told)) return {};
  said_at_ = now_();
  said_waits_ = waits;
  SHOAL_RETURN_IF_ERROR(interrupted());
  return in_step ? send(StepProgress{step_, parts_, waits}) : send(PhaseBegun{phase_});
}

/// Called in every long wait of a collective. The front must know that this rank waits, because it
/// gives more time only to a rank that computes.
Status Rank::still_waiting() {
  SHOAL_RETURN_IF_ERROR(interrupted());
  if (phase_ != Phase::kStep || start_.heartbeat_ms <= 0 || said_waits_) return {};
  said_waits_ = true;
  return send(StepProgress{step_, parts_, true});
}

Status Rank::waits(const std::string& where, uint64_t mark, bool sums) {
  if (communicator_ != nullptr) communicator_->device_waits(true);
  where_ = where;
  const std::optional<DeviceMark> before =
      std::exchange(device_mark_, DeviceMark{mark, sums, step_});
  return before && mark > before->mark ? complete_part(true) : still_waiting();
}

template <typename Message>
Status Rank::send(const Message& message) {
  return channel_.send(encode_rank_message(message), Deadline::after_ms(kSendTimeoutMs));
}

/// The next message; nullopt if the front is gone.
Result<std::optional<FrontMessage>> Rank::next(int spin_us) {
  if (!kept_.empty()) {
    FrontMessage message = std::move(kept_.front());
    kept_.pop_front();
    return std::optional<FrontMessage>(std::move(message));
  }
  Result<std::string> frame = channel_.receive(Deadline::infinite(), spin_us);
  if (!frame.ok()) {
    if (frame.status().code() == Code::kUnavailable) return std::optional<FrontMessage>();
    return frame.status();
  }
  SHOAL_ASSIGN_OR_RETURN(FrontMessage message, decode_front_message(*frame));
  return std::optional<FrontMessage>(std::move(message));
}

/// Called in every long wait, because the front knows of a stopped or dead peer and this rank does
/// not. Other messages that arrive meanwhile are kept for next().
Status Rank::interrupted() {
  for (;;) {
    Result<std::string> frame = channel_.receive(Deadline::after_ms(0));
    if (!frame.ok()) {
      if (frame.status().code() == Code::kDeadlineExceeded) return {};
      return frame.status().while_doing("the front is gone");
    }
    SHOAL_ASSIGN_OR_RETURN(FrontMessage message, decode_front_message(*frame));
    if (std::holds_alternative<Explain>(message)) {
      return Status::error(Code::kUnavailable, "the front has given this step up");
    }
    kept_.push_back(std::move(message));  // such as the next step, if rank 0 was quicker
  }
}

/// Sends `mine` and waits for the parts of all ranks.
Result<std::vector<std::string>> Rank::exchange(std::string mine) {
  SHOAL_RETURN_IF_ERROR(send(ExchangePart{std::move(mine)}));
  in_exchange_ = true;
  SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> message, next(0));
  if (!message) return Status::error(Code::kUnavailable, "the front is gone");
  if (std::holds_alternative<Explain>(*message)) {
    return Status::error(Code::kUnavailable, "the front has given the start up");
  }
  auto* all = std::get_if<ExchangeAll>(&*message);
  if (all == nullptr) return out_of_turn();
  in_exchange_ = false;
  return std::move(all->parts);
}

/// If the error names a fault, that one counts. Otherwise a transport that is not proven yet, or
/// has failed since, is to blame.
RankFailure Rank::failure_of(const Status& status) const {
  Fault fault = status.fault();
  const bool of_transport = phase_ == Phase::kOpen || phase_ == Phase::kSelfTest ||
                            (communicator_ != nullptr && communicator_->failed());
  if (fault == Fault::kOwn && of_transport) fault = Fault::kTransport;
  return {status.blamed_on(fault), wait(), fault};
}

/// Which exchange or collective this rank is in, which ranks it waits for, and where.
RankWait Rank::wait() const {
  RankWait wait;
  if (in_exchange_) {
    wait.what = "an exchange through the front";
    for (int32_t rank = 0; rank < start_.world_size; ++rank) {
      if (rank != start_.rank) wait.waits_for.push_back(rank);
    }
  } else if (communicator_ != nullptr) {
    const WaitState state = communicator_->wait_state();
    wait = {.collective = state.collective,
            .what = state.what,
            .waits_for = {state.waits_for.begin(), state.waits_for.end()},
            .where = "",
            .device = state.guessed ? device_mark_ : std::nullopt};
  }
  wait.where = where_;
  return wait;
}

}  // namespace shoal
