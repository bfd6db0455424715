#include "server/facades/infer_service.h"

#include <grpcpp/grpcpp.h>

#include "server/facades/infer_dialect.h"
#include "server/facades/infer_request.h"
#include "server/facades/infer_stream.h"
#include "server/grpc/grpc_status.h"

#include "kserve/inference.grpc.pb.h"

namespace shoal {

namespace {

// What Triton says of its backend for vLLM.
constexpr char kPlatform[] = "shoal";

void write_metadata(const std::string& name, inference::ModelMetadataResponse* response) {
  response->set_name(name);
  response->add_versions(kInferVersion);
  response->set_platform(kPlatform);
  const auto write = [](const InferTensorName& from, auto* tensor) {
    tensor->set_name(from.name);
    tensor->set_datatype(from.datatype);
    tensor->add_shape(from.size);
  };
  for (const InferTensorName& input : infer_inputs()) write(input, response->add_inputs());
  for (const InferTensorName& output : infer_outputs()) write(output, response->add_outputs());
}

void write_config(const std::string& name, inference::ModelConfig* config) {
  config->set_name(name);
  config->set_platform(kPlatform);
  config->set_backend(kPlatform);
  // Requests are put together from step to step, not as rows of one tensor.
  config->set_max_batch_size(0);
  config->mutable_model_transaction_policy()->set_decoupled(true);
  for (const InferTensorName& input : infer_inputs()) {
    inference::ModelInput* one = config->add_input();
    one->set_name(input.name);
    one->set_data_type(input.config_type);
    one->add_dims(input.size);
    one->set_optional(true);
  }
  for (const InferTensorName& output : infer_outputs()) {
    inference::ModelOutput* one = config->add_output();
    one->set_name(output.name);
    one->set_data_type(output.config_type);
    one->add_dims(output.size);
  }
}

void write_duration(uint64_t count, double seconds, inference::StatisticDuration* duration) {
  duration->set_count(count);
  duration->set_ns(static_cast<uint64_t>(seconds * 1e9));
}

void write_statistics(const RequestCounts& counts, inference::ModelStatistics* statistics) {
  const auto ended = [&](RequestEnd how) {
    return static_cast<uint64_t>(counts.ended[static_cast<size_t>(how)]);
  };
  const uint64_t good = ended(RequestEnd::kStop) + ended(RequestEnd::kLength);
  statistics->set_inference_count(good);
  statistics->set_execution_count(counts.step_seconds.count());
  inference::InferStatistics* infer = statistics->mutable_inference_stats();
  write_duration(good, counts.whole.sum(), infer->mutable_success());
  write_duration(ended(RequestEnd::kAbort) + ended(RequestEnd::kError), 0, infer->mutable_fail());
  write_duration(counts.queue.count(), counts.queue.sum(), infer->mutable_queue());
  write_duration(counts.step_seconds.count(), counts.step_seconds.sum(),
                 infer->mutable_compute_infer());
}

/// The places of the methods in the service's definition.
enum InferMethod {
  kServerLive,
  kServerReady,
  kModelReady,
  kServerMetadata,
  kModelMetadata,
  kModelInfer,
  kModelStreamInfer,
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex
};

class InferService final
    : public WithByteMethods<inference::GRPCInferenceService::CallbackService> {
 public:
  explicit InferService(ServiceParts parts)
      : parts_(std::move(parts)), dialect_(make_infer_dialect()) {
    stream_bytes(kModelInfer,
                 [this](Context* context) { return start_call(parts_, dialect_, context); });
    stream_bytes(kModelStreamInfer, [this](Context* context) { return start_stream(context); });
    answer_health();
    answer_descriptions();
  }

 private:
  /// What everyone may ask.
  void answer_health() {
    const Check none = [](const Context&) { return grpc::Status::OK; };
    answer<inference::ServerLiveRequest, inference::ServerLiveResponse>(
        kServerLive, none, [](const auto&, auto* response) {
          response->set_live(true);
          return grpc::Status::OK;
        });
    answer<inference::ServerReadyRequest, inference::ServerReadyResponse>(
        kServerReady, none, [this](const auto&, auto* response) {
          response->set_ready(ready());
          return grpc::Status::OK;
        });
    answer<inference::ModelReadyRequest, inference::ModelReadyResponse>(
        kModelReady, none, [this](const auto& request, auto* response) {
          grpc::Status status = check(request);
          if (status.ok()) response->set_ready(ready());
          return status;
        });
  }

  void answer_descriptions() {
    const Check key = [this](const Context& context) { return check_key(context, parts_); };
    answer<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
        kServerMetadata, key, [](const auto&, auto* response) {
          response->set_name("shoal");
          response->set_version(SHOAL_VERSION);
          for (const char* extension : {"model_configuration", "model_repository", "statistics"})
            response->add_extensions(extension);
          return grpc::Status::OK;
        });
    answer<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
        kModelMetadata, key, [this](const auto& request, auto* response) {
          grpc::Status status = check(request);
          if (status.ok()) write_metadata(name_of(request), response);
          return status;
        });
    answer<inference::ModelConfigRequest, inference::ModelConfigResponse>(
        kModelConfig, key, [this](const auto& request, auto* response) {
          grpc::Status status = check(request);
          if (status.ok()) write_config(name_of(request), response->mutable_config());
          return status;
        });
    answer<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>(
        kModelStatistics, key, [this](const auto& request, auto* response) {
          grpc::Status status = check(request);
          if (status.ok()) statistics(name_of(request), response->add_model_stats());
          return status;
        });
    answer<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>(
        kRepositoryIndex, key, [this](const auto& request, auto* response) {
          index(request.ready(), response);
          return grpc::Status::OK;
        });
  }

  void statistics(const std::string& name, inference::ModelStatistics* statistics) const {
    statistics->set_name(name);
    statistics->set_version(kInferVersion);
    const ServingState::View view = parts_.state->view();
    if (view.loop != nullptr) write_statistics(view.loop->counts(), statistics);
  }

  void index(bool only_ready, inference::RepositoryIndexResponse* response) const {
    const Readiness now = readiness(parts_.state->view());
    if (only_ready && now != Readiness::kReady) return;
    for (const std::string& name : parts_.state->served_names()) {
      inference::RepositoryIndexResponse::ModelIndex* model = response->add_models();
      model->set_name(name);
      model->set_version(kInferVersion);
      model->set_state(now == Readiness::kReady ? "READY" : "UNAVAILABLE");
      if (now != Readiness::kReady) model->set_reason(readiness_name(now));
    }
  }

  bool ready() const { return readiness(parts_.state->view()) == Readiness::kReady; }

  template <typename Request>
  grpc::Status check(const Request& request) const {
    return check_infer_model(*parts_.state, request.name(), request.version());
  }
  /// The name that the client used.
  template <typename Request>
  std::string name_of(const Request& request) const {
    return request.name().empty() ? parts_.state->served_name() : request.name();
  }

  ByteReactor* start_stream(Context* context) const {
    if (const grpc::Status refusal = check_call(*context, parts_); !refusal.ok())
      return refuse_call(refusal);
    const std::string client = address_of(context->peer());
    const auto stream = std::make_shared<InferStream>(parts_, dialect_, open_);
    if (open_->enter(stream, client)) return stream->start(context, client);
    constexpr int kRetryMs = 1000;
    return refuse_call(to_grpc_status(
        Status::error(
            Code::kResourceExhausted,
            "too many ModelStreamInfer calls are open, of at most 64 in all and 32 of one "
            "client: send several requests on one of them, which run at the same time"),
        {.reason = "TOO_MANY_STREAMS", .retry_ms = kRetryMs}));
  }

  const ServiceParts parts_;
  const std::shared_ptr<const Dialect> dialect_;
  const std::shared_ptr<OpenStreams> open_ = std::make_shared<OpenStreams>();
};

}  // namespace

std::unique_ptr<grpc::Service> make_infer_service(const ServiceParts& parts) {
  return std::make_unique<InferService>(parts);
}

}  // namespace shoal
