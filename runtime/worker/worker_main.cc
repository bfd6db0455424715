#include "runtime/worker/worker_main.h"

#include <cstdlib>
#include <deque>
#include <optional>
#include <signal.h>
#include <string_view>
#include <sys/prctl.h>

#include "runtime/base/log.h"
#include "runtime/base/thread_pool.h"
#include "runtime/control/channel.h"
#include "runtime/control/descriptors.h"
#include "runtime/control/wire.h"
#include "runtime/transport/rungs/rung.h"
#include "runtime/transport/self_test.h"
#include "runtime/worker/model_runner.h"
#include "runtime/worker/rank_device.h"

namespace shoal {
namespace {

/// How long a rank looks for the next plan before it sleeps: the front needs about this long to
/// make one.
constexpr int kPlanSpinUs = 60;
constexpr int64_t kSendTimeoutMs = 10'000;
/// So long into the self-test a rank says again that it is at it: a busy machine is slow, a stuck
/// group is silent.
constexpr auto kStillAtIt = std::chrono::seconds(1);

/// The signals that end the front gracefully may reach the whole process group: here they mean
/// nothing.
void settle_process() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGTERM, SIGINT, SIGPIPE}) ::signal(number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none,
                nullptr);  // the front blocked them while this process was being born
  set_float_environment();
}

/// For tests of what the front does about it: a rank's first start has a fault on entering a phase.
/// SHOAL_TEST_FAULT=RANK:PHASE:KIND; PHASE is spawn, open, self-test, load or step-N; KIND is stop
/// (SIGSTOP) or fail (an error of its own).
class TestFault {
 public:
  void set(const WorkerInit& init) {
    const char* text = std::getenv("SHOAL_TEST_FAULT");
    const std::string mine = cat(init.rank, ":");
    if (text != nullptr && init.start_number == 0 && std::string_view(text).starts_with(mine))
      at_ = text + mine.size();
  }
  Status enter(std::string_view phase) const {
    if (at_.empty() || !at_.starts_with(cat(phase, ":"))) return {};
    if (at_.ends_with(":stop")) ::raise(SIGSTOP);
    if (at_.ends_with(":fail"))
      return Status::error(Code::kInternal, "SHOAL_TEST_FAULT asked for this failure");
    return {};
  }
  Status enter_step(uint64_t step) const {
    return at_.empty() ? Status() : enter(cat("step-", step));
  }

 private:
  std::string at_;
};

class Worker {
 public:
  explicit Worker(int control_fd) : channel_(Fd(control_fd)) {}

  int run() {
    const Status status = serve();
    if (status.ok()) return 0;
    const Status sent = send(WorkerFailure{status, wait()});
    return sent.ok() ? 1 : 0;  // nobody left to tell: the front is gone, and so are we
  }

 private:
  Status send(const WorkerMessage& message) {
    return channel_.send(encode(message), Deadline::after_ms(kSendTimeoutMs));
  }

  Status begin(WorkerPhase phase) {
    SHOAL_RETURN_IF_ERROR(send(PhaseBegun{phase}));
    return test_fault_.enter(phase_name(phase));
  }

  /// nullopt: the front is gone.
  Result<std::optional<FrontMessage>> next(int spin_us) {
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

  /// Asked in every long wait: a stopped or dead peer is known to the front, not to us.
  Status interrupted() {
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
      kept_.push_back(std::move(message));  // the next plan: a peer was quicker than we
    }
  }

  /// Where this rank stands in its collectives.
  RankWait wait() const {
    const Communicator* communicator = runner_ ? runner_->communicator() : nullptr;
    if (communicator == nullptr) communicator = communicator_.get();
    if (communicator == nullptr) return {};
    const WaitState state = communicator->wait_state();
    return {state.collective, state.what, {state.waits_for.begin(), state.waits_for.end()}};
  }

  Status serve() {
    SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> first, next(0));
    if (!first) return {};
    const auto* init = std::get_if<WorkerInit>(&*first);
    if (init == nullptr)
      return Status::error(Code::kInternal, "the first control message is not the worker's start");
    set_process_rank(init->rank);
    set_log_options({static_cast<LogLevel>(init->log_level),
                     init->log_json ? LogFormat::kJson : LogFormat::kText});
    test_fault_.set(*init);
    SHOAL_RETURN_IF_ERROR(test_fault_.enter("spawn"));
    SHOAL_RETURN_IF_ERROR(connect(*init));
    if (!init->transport_only) SHOAL_RETURN_IF_ERROR(load(*init));
    for (;;) {
      SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> message, next(kPlanSpinUs));
      if (!message || std::holds_alternative<Shutdown>(*message)) return {};
      if (std::holds_alternative<Explain>(*message)) {
        return Status::error(Code::kUnavailable, "the front has given this step up");
      }
      const auto* plan = std::get_if<StepPlan>(&*message);
      if (plan == nullptr || !runner_)
        return Status::error(Code::kInternal, "a control message out of turn");
      step_ = plan->step;
      heartbeat_at_ = Clock::now();
      SHOAL_RETURN_IF_ERROR(test_fault_.enter_step(step_));
      SHOAL_ASSIGN_OR_RETURN(StepResult result, runner_->run(*plan));
      if (init->rank == 0) SHOAL_RETURN_IF_ERROR(send(std::move(result)));
    }
  }

  /// The transport first: it fails in milliseconds, weights take minutes.
  Status connect(const WorkerInit& init) {
    SHOAL_RETURN_IF_ERROR(begin(WorkerPhase::kOpen));
    SHOAL_ASSIGN_OR_RETURN(communicator_, open(init));
    SHOAL_RETURN_IF_ERROR(begin(WorkerPhase::kSelfTest));
    TransportVerified verified;
    if (init.world_size > 1) {
      Result<SelfTestFigures> figures = self_test(
          *communicator_, init.self_test_seed, [this, said_at = Clock::now()]() mutable -> Status {
            if (Clock::now() - said_at < kStillAtIt) return {};
            said_at = Clock::now();
            return send(PhaseBegun{WorkerPhase::kSelfTest});
          });
      if (!figures.ok())
        return figures.status().while_doing(cat("self-test of transport ", init.transport));
      verified = {figures->latency_us, figures->bytes_per_s, figures->seconds};
    }
    return send(verified);
  }

  Result<std::unique_ptr<Communicator>> open(const WorkerInit& init) {
    if (init.world_size == 1) return make_single_communicator();
    const Rung* rung = find_rung(init.transport);
    if (rung == nullptr)
      return Status::error(Code::kInternal, cat("no transport ", init.transport));
    OpenArgs args;
    args.world = {init.rank, init.world_size};
    if (init.shm_bytes > 0) args.shm = Fd(kWorkerShmFd);
    if (!init.tcp_ports.empty()) args.listener = Fd(kWorkerListenerFd);
    args.shm_bytes = init.shm_bytes;
    args.tcp_ports = init.tcp_ports;
    args.group_key = init.group_key;
    args.timeout_ms = init.collective_timeout_ms;
    args.exchange = [this](std::string mine) { return exchange(std::move(mine)); };
    args.interrupted = [this] { return interrupted(); };
    if (rung->on_device) {
      Result<std::shared_ptr<Device>> device = open_rank_device(init, args.exchange);
      if (!device.ok())
        return device.status().while_doing(cat("a device for transport ", init.transport));
      args.device = std::move(device).value();
    }
    args.nccl_library = init.nccl_library;
    args.reproducible = init.reproducible;
    Result<std::unique_ptr<Communicator>> opened = rung->open(std::move(args));
    if (!opened.ok()) return opened.status().while_doing(cat("open transport ", init.transport));
    return opened;
  }

  Result<std::vector<std::string>> exchange(std::string mine) {
    SHOAL_RETURN_IF_ERROR(send(ExchangePart{std::move(mine)}));
    SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> message, next(0));
    if (!message) return Status::error(Code::kUnavailable, "the front is gone");
    if (std::holds_alternative<Explain>(*message)) {
      return Status::error(Code::kUnavailable, "the front has given the start up");
    }
    auto* all = std::get_if<ExchangeAll>(&*message);
    if (all == nullptr) return Status::error(Code::kInternal, "a control message out of turn");
    return std::move(all->parts);
  }

  Status load(const WorkerInit& init) {
    SHOAL_RETURN_IF_ERROR(begin(WorkerPhase::kLoad));
    // One message per percent at most: progress is for people.
    int last_percent = -1;
    Status failed;
    const auto progress = [&](const LoadProgress& p) {
      const int percent =
          p.bytes_total == 0 ? 100 : static_cast<int>(p.bytes_done * 100 / p.bytes_total);
      if (percent == last_percent || !failed.ok()) return;
      last_percent = percent;
      failed = send(p);
    };
    SHOAL_ASSIGN_OR_RETURN(runner_, ModelRunner::load(init, progress));
    SHOAL_RETURN_IF_ERROR(failed);
    WorkerReady ready{communicator_->name(), runner_->kernels_name(), runner_->weight_bytes(),
                      runner_->kv_bytes()};
    SHOAL_RETURN_IF_ERROR(runner_->connect(std::move(communicator_)));
    if (init.step_heartbeat_ms > 0) {
      const auto pause = std::chrono::milliseconds(init.step_heartbeat_ms);
      runner_->set_after_layer([this, pause]() -> Status {
        if (Clock::now() - heartbeat_at_ < pause) return {};
        heartbeat_at_ = Clock::now();
        SHOAL_RETURN_IF_ERROR(interrupted());
        return send(StepProgress{step_});
      });
    }
    return send(std::move(ready));
  }

  Channel channel_;
  std::deque<FrontMessage> kept_;               // came while a collective waited
  std::unique_ptr<Communicator> communicator_;  // until the runner has it
  std::unique_ptr<ModelRunner> runner_;
  TestFault test_fault_;
  uint64_t step_ = 0;
  Clock::time_point heartbeat_at_;
};

}  // namespace

int worker_main(int control_fd) {
  settle_process();
  return Worker(control_fd).run();
}

}  // namespace shoal
