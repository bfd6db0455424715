#include "server/grpc/health_call.h"

#include <grpcpp/grpcpp.h>
#include <mutex>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "server/grpc/grpc_status.h"

#include "openengine/v1/control.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

/// If a step has ended within this time, the engine works.
constexpr std::chrono::milliseconds kRecently{5'000};

/// Orders states by how bad they are, because the enum is in another order.
int severity(wire::HealthState state) {
  switch (state) {
    case wire::HEALTH_STATE_READY:
      return 0;
    case wire::HEALTH_STATE_DEGRADED:
      return 1;
    case wire::HEALTH_STATE_DRAINING:
      return 2;
    case wire::HEALTH_STATE_STARTING:
      return 3;
    default:
      return 4;
  }
}

void add_check(const char* name, wire::HealthState state, const std::string& message,
               wire::HealthResponse* response) {
  wire::HealthCheck* check = response->add_checks();
  check->set_name(name);
  check->set_state(state);
  check->set_message(to_valid_utf8(message));  // a path in it may not be UTF-8
}

/// Sets the overall state to the worst of the checks.
void summarize(wire::HealthResponse* response) {
  wire::HealthState worst = wire::HEALTH_STATE_READY;
  for (const wire::HealthCheck& check : response->checks())
    if (severity(check.state()) > severity(worst)) worst = check.state();
  response->set_state(worst);
}

/// Writes the checks that need no inference.
void write_checks(const ServingState& state, wire::EngineRole role,
                  wire::HealthResponse* response) {
  const ServingState::View view = state.view();
  add_check("grpc", wire::HEALTH_STATE_READY, "", response);
  if (view.phase == ServingPhase::kLoading)
    add_check("model", wire::HEALTH_STATE_STARTING, "loading", response);
  else if (view.phase == ServingPhase::kDraining)
    add_check("model", wire::HEALTH_STATE_DRAINING, "running streams end, no new ones are taken",
              response);
  else if (!view.restarting.ok())
    add_check("model", wire::HEALTH_STATE_NOT_READY,
              cat("the ranks were lost and are being started again: ", explain(view.restarting)),
              response);
  else if (view.stopping)
    add_check("model", wire::HEALTH_STATE_DRAINING,
              "the server is going to stop; requests are still taken for a while", response);
  else
    add_check("model", wire::HEALTH_STATE_READY, "", response);
  if (view.loop != nullptr) {
    const Status status = view.loop->status();
    add_check("scheduler", status.ok() ? wire::HEALTH_STATE_READY : wire::HEALTH_STATE_NOT_READY,
              explain(status), response);
  }
  if (view.deployment.transport_report) {
    const TransportReport report = view.deployment.transport_report();
    add_check("transport",
              report.degraded() ? wire::HEALTH_STATE_DEGRADED : wire::HEALTH_STATE_READY,
              summary(report), response);
  }
  // Role values of a later revision are treated as unspecified.
  if (role == wire::ENGINE_ROLE_PREFILL || role == wire::ENGINE_ROLE_DECODE)
    add_check("role", wire::HEALTH_STATE_NOT_READY,
              "this server does prefill and decode: role AGGREGATED", response);
}

/// It owns itself until gRPC is done with it; the loop may own it longer.
class HealthCall final : public ByteReactor,
                         public OpenRequest,
                         public std::enable_shared_from_this<HealthCall> {
 public:
  explicit HealthCall(std::shared_ptr<ServingState> state) : state_(std::move(state)) {}

  void start() {
    self_ = shared_from_this();
    StartRead(&bytes_);
  }

  void OnReadDone(bool ok) override {
    wire::HealthRequest request;
    grpc::Status status = ok ? parse_small(&bytes_, &request) : no_request();
    bytes_.Clear();
    if (status.ok())
      status = to_grpc_status(state_->check_model(request.model()), {.reason = "MODEL_NOT_FOUND"});
    const ServingState::View view = state_->view();
    bool probes = false;
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      if (!status.ok()) return finish(status);
      write_checks(*state_, request.role(), &response_);
      probes = request.include_inference_probe() && view.model != nullptr;
      if (!probes) return finish();
    }
    probe(*view.loop);
  }

  void on_delta(OutputDelta delta) override { tokens_ += delta.tokens.size(); }
  /// The token comes once the ranks run again, for which nobody is to wait.
  void on_lost(const Status& why) override {
    report(wire::HEALTH_STATE_NOT_READY, explain(why));
    cancel(RequestBook::Lock(*state_->book()));
  }
  void on_end(OutputEnd end) override {
    if (end.status.ok() && tokens_ == 1)
      report(wire::HEALTH_STATE_READY, "");
    else
      report(wire::HEALTH_STATE_NOT_READY, end.status.ok() ? "no token came" : explain(end.status));
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    cancel(RequestBook::Lock(*state_->book()));
    if (!finished_) finish({grpc::StatusCode::CANCELLED, "cancelled by the client"});
  }
  void OnDone() override { const std::shared_ptr<HealthCall> last = std::move(self_); }

 private:
  void probe(InferenceLoop& loop) {
    const auto listener = [call = shared_from_this()](const std::optional<Status>& step) {
      call->step_ended(step);
    };
    switch (loop.await_step(kRecently, listener)) {
      case InferenceLoop::Awaited::kEnded:
        return report(wire::HEALTH_STATE_READY, "");
      case InferenceLoop::Awaited::kLater:
        return;
      case InferenceLoop::Awaited::kIdle:
        return generate();
    }
  }

  /// A step of other requests has ended, or they are all gone without one.
  void step_ended(const std::optional<Status>& step) {
    if (step && step->ok()) return report(wire::HEALTH_STATE_READY, "");
    if (step) return report(wire::HEALTH_STATE_NOT_READY, explain(*step));
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
    }
    generate();
  }

  /// Generates one token. No other request runs, so this one gets into a step at once.
  void generate() {
    GenerationRequest request;
    const ServedModel& model = *state_->view().model;
    request.prompt_ids = std::vector<int64_t>{model.config.bos_token_id.value_or(0)};
    request.max_tokens = 1;
    request.temperature = 0;
    request.ignore_eos = true;
    const RefusedRequest why = state_->submit(std::move(request), shared_from_this()).error();
    if (!why.ok()) return refused(why);
    const std::lock_guard lock(mutex_);
    if (finished_) cancel(RequestBook::Lock(*state_->book()));
  }

  void report(wire::HealthState state, const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    add_check("inference_probe", state, message, &response_);
    finish();
  }

  void refused(const RefusedRequest& refused) {
    const std::string text = explain(refused.error.status);
    switch (refused.why) {
      case NotTaken::kLoading:
      case NotTaken::kDraining: {  // the checks have already reported it
        const std::lock_guard lock(mutex_);
        if (!finished_) finish();
        return;
      }
      default:
        return report(wire::HEALTH_STATE_NOT_READY, text);
    }
  }

  // These require that mutex_ is held.
  void finish() {
    finished_ = true;
    summarize(&response_);
    bytes_ = to_bytes(response_);
    StartWriteAndFinish(&bytes_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void finish(const grpc::Status& error) {
    finished_ = true;
    Finish(error);
  }

  const std::shared_ptr<ServingState> state_;
  wire::HealthResponse response_;
  grpc::ByteBuffer bytes_;  // of the request, then of the answer
  std::shared_ptr<HealthCall> self_;
  size_t tokens_ = 0;  // used only by the loop's thread
  std::mutex mutex_;
  bool finished_ = false;
};

}  // namespace

ByteReactor* make_health_call(std::shared_ptr<ServingState> state) {
  const auto call = std::make_shared<HealthCall>(std::move(state));
  call->start();
  return call.get();  // it owns itself
}

}  // namespace shoal
