#include "server/grpc/health_probe.h"

#include <grpcpp/grpcpp.h>
#include <mutex>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "server/grpc/byte_methods.h"
#include "server/grpc/grpc_status.h"

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

/// A Health call with the check "inference_probe". It owns itself until gRPC is done with it; the
/// loop may own it longer.
class HealthProbe final : public grpc::ServerUnaryReactor,
                          public OutputSink,
                          public std::enable_shared_from_this<HealthProbe> {
 public:
  HealthProbe(std::shared_ptr<ServingState> state, const ServedModel& model,
              wire::HealthResponse response, grpc::ByteBuffer* out)
      : state_(std::move(state)), model_(model), response_(std::move(response)), out_(out) {}

  void start() {
    self_ = shared_from_this();
    InferenceLoop& loop = *state_->view().loop;
    const auto told = [probe = shared_from_this()](bool stepped) { probe->step_ended(stepped); };
    switch (loop.await_step(kRecently, told)) {
      case InferenceLoop::Awaited::kEnded:
        return report(wire::HEALTH_STATE_READY, "");
      case InferenceLoop::Awaited::kLater:
        return;
      case InferenceLoop::Awaited::kIdle:
        return generate();
    }
  }

  void on_delta(OutputDelta delta) override { tokens_ += delta.tokens.size(); }
  void on_end(OutputEnd end) override {
    if (end.status.ok() && tokens_ == 1)
      report(wire::HEALTH_STATE_READY, "");
    else
      report(wire::HEALTH_STATE_NOT_READY, end.status.ok() ? "no token came" : explain(end.status));
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    if (taken_.loop != nullptr) taken_.loop->cancel(taken_.id);
    if (finished_) return;
    finished_ = true;
    Finish({grpc::StatusCode::CANCELLED, "cancelled by the client"});
  }
  void OnDone() override { const std::shared_ptr<HealthProbe> last = std::move(self_); }

 private:
  /// A step of other requests has ended well, or they are all gone without one.
  void step_ended(bool well) {
    if (well) return report(wire::HEALTH_STATE_READY, "");
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
    }
    generate();
  }

  /// Generates one token. Nothing else runs, so that it is at once in a step.
  void generate() {
    GenerationRequest request;
    request.prompt_ids = std::vector<int64_t>{model_.config.bos_token_id.value_or(0)};
    request.max_tokens = 1;
    request.temperature = 0;
    request.ignore_eos = true;
    const Result<ServingState::Taken, RefusedRequest> taken =
        state_->submit(std::move(request), shared_from_this());
    if (!taken.ok()) return refused(taken.error());
    const std::lock_guard lock(mutex_);
    taken_ = *taken;
    if (finished_) taken_.loop->cancel(taken_.id);
  }

  void report(wire::HealthState state, const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;  // out_ may be gone
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

  /// Requires that mutex_ is held.
  void finish() {
    finished_ = true;
    summarize(&response_);
    *out_ = to_bytes(response_);
    Finish(grpc::Status::OK);
  }

  const std::shared_ptr<ServingState> state_;
  const ServedModel& model_;
  wire::HealthResponse response_;
  grpc::ByteBuffer* const out_;  // gRPC's, until it is done
  std::shared_ptr<HealthProbe> self_;
  size_t tokens_ = 0;  // used only by the loop's thread
  std::mutex mutex_;
  ServingState::Taken taken_;
  bool finished_ = false;
};

}  // namespace

void add_check(const char* name, wire::HealthState state, const std::string& message,
               wire::HealthResponse* response) {
  wire::HealthCheck* check = response->add_checks();
  check->set_name(name);
  check->set_state(state);
  check->set_message(to_valid_utf8(message));  // a path in it may not be UTF-8
}

void summarize(wire::HealthResponse* response) {
  wire::HealthState worst = wire::HEALTH_STATE_READY;
  for (const wire::HealthCheck& check : response->checks())
    if (severity(check.state()) > severity(worst)) worst = check.state();
  response->set_state(worst);
}

grpc::ServerUnaryReactor* start_health_probe(std::shared_ptr<ServingState> state,
                                             const ServedModel& model,
                                             wire::HealthResponse response, grpc::ByteBuffer* out) {
  const auto probe =
      std::make_shared<HealthProbe>(std::move(state), model, std::move(response), out);
  probe->start();
  return probe.get();  // it owns itself
}

}  // namespace shoal
