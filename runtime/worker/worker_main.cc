#include "runtime/worker/worker_main.h"

#include <optional>
#include <signal.h>
#include <sys/prctl.h>

#include "runtime/base/log.h"
#include "runtime/base/thread_pool.h"
#include "runtime/control/channel.h"
#include "runtime/control/descriptors.h"
#include "runtime/control/wire.h"
#include "runtime/transport/rung.h"
#include "runtime/worker/model_runner.h"

namespace shoal {
namespace {

/// How long a rank looks for the next plan before it sleeps: the front needs about this long to make one.
constexpr int kPlanSpinUs = 60;
constexpr int64_t kSendTimeoutMs = 10'000;

/// The signals that end the front gracefully may reach the whole process group: here they mean nothing.
void settle_process() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGTERM, SIGINT, SIGPIPE}) ::signal(number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // the front blocked them while this process was being born
  set_float_environment();
}

class Worker {
 public:
  explicit Worker(int control_fd) : channel_(Fd(control_fd)) {}

  int run() {
    const Status status = serve();
    if (status.ok()) return 0;
    const Status sent = send(WorkerFailure{status});
    return sent.ok() ? 1 : 0;  // nobody left to tell: the front is gone, and so are we
  }

 private:
  Status send(const WorkerMessage& message) {
    return channel_.send(encode(message), Deadline::after_ms(kSendTimeoutMs));
  }

  /// nullopt: the front is gone.
  Result<std::optional<FrontMessage>> next(int spin_us) {
    Result<std::string> frame = channel_.receive(Deadline::infinite(), spin_us);
    if (!frame.ok()) {
      if (frame.status().code() == Code::kUnavailable) return std::optional<FrontMessage>();
      return frame.status();
    }
    SHOAL_ASSIGN_OR_RETURN(FrontMessage message, decode_front_message(*frame));
    return std::optional<FrontMessage>(std::move(message));
  }

  Status serve() {
    SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> first, next(0));
    if (!first) return {};
    const auto* init = std::get_if<WorkerInit>(&*first);
    if (init == nullptr) return Status::error(Code::kInternal, "the first control message is not the worker's start");
    set_process_rank(init->rank);
    set_log_options({static_cast<LogLevel>(init->log_level), init->log_json ? LogFormat::kJson : LogFormat::kText});
    SHOAL_RETURN_IF_ERROR(start(*init));
    for (;;) {
      SHOAL_ASSIGN_OR_RETURN(std::optional<FrontMessage> message, next(kPlanSpinUs));
      if (!message || std::holds_alternative<Shutdown>(*message)) return {};
      const auto* plan = std::get_if<StepPlan>(&*message);
      if (plan == nullptr) return Status::error(Code::kInternal, "a second start message");
      SHOAL_ASSIGN_OR_RETURN(StepResult result, runner_->run(*plan));
      if (init->rank == 0) SHOAL_RETURN_IF_ERROR(send(std::move(result)));
    }
  }

  Status start(const WorkerInit& init) {
    // One message per percent at most: progress is for people.
    int last_percent = -1;
    Status failed;
    const auto progress = [&](const LoadProgress& p) {
      const int percent = p.bytes_total == 0 ? 100 : static_cast<int>(p.bytes_done * 100 / p.bytes_total);
      if (percent == last_percent || !failed.ok()) return;
      last_percent = percent;
      failed = send(p);
    };
    SHOAL_ASSIGN_OR_RETURN(runner_, ModelRunner::load(init, progress));
    SHOAL_RETURN_IF_ERROR(failed);
    SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, connect(init));
    WorkerReady ready{communicator->name(), runner_->kernels_name(), runner_->weight_bytes(), runner_->kv_bytes()};
    runner_->connect(std::move(communicator));
    return send(std::move(ready));
  }

  Result<std::unique_ptr<Communicator>> connect(const WorkerInit& init) {
    if (init.world_size == 1) return make_single_communicator();
    const Rung* rung = find_rung(init.transport);
    if (rung == nullptr) return Status::error(Code::kInternal, cat("no transport ", init.transport));
    OpenArgs args;
    args.world = {init.rank, init.world_size};
    if (init.shm_bytes > 0) args.shm = Fd(kWorkerShmFd);
    if (!init.tcp_ports.empty()) args.listener = Fd(kWorkerListenerFd);
    args.shm_bytes = init.shm_bytes;
    args.tcp_ports = init.tcp_ports;
    args.group_key = init.group_key;
    args.timeout_ms = init.collective_timeout_ms;
    Result<std::unique_ptr<Communicator>> opened = rung->open(std::move(args));
    if (!opened.ok()) return opened.status().while_doing(cat("open transport ", init.transport));
    SHOAL_RETURN_IF_ERROR((*opened)->barrier().while_doing(cat("first barrier over ", init.transport)));
    return opened;
  }

  Channel channel_;
  std::unique_ptr<ModelRunner> runner_;
};

}  // namespace

int worker_main(int control_fd) {
  settle_process();
  return Worker(control_fd).run();
}

}  // namespace shoal
