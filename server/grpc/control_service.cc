#include <chrono>
#include <grpcpp/grpcpp.h>
#include <utility>

#include "runtime/base/counted.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/health_call.h"
#include "server/grpc/services.h"

#include "openengine/v1/services.grpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

// The revision of the wire contract at the commit that proto/README.md names, in the numbering of
// its own repository.
constexpr uint32_t kSchemaRevision = 1;
constexpr char kSchemaRelease[] = "v0.1.0";

void set_text(google::protobuf::Struct* extra, const char* key, const std::string& value) {
  (*extra->mutable_fields())[key].set_string_value(value);
}

void set_number(google::protobuf::Struct* extra, const char* key, double value) {
  (*extra->mutable_fields())[key].set_number_value(value);
}

void write_server_info(const ServingState& state, wire::ServerInfo* info) {
  info->set_engine_name("shoal");
  info->set_engine_version(SHOAL_VERSION);
  info->set_engine_role(wire::ENGINE_ROLE_AGGREGATED);
  info->set_instance_id(state.instance_id());
  for (const std::string& name : state.served_names()) info->add_supported_models(name);
  info->set_schema_revision(kSchemaRevision);
  info->set_minimum_client_revision(kSchemaRevision);
  info->set_schema_release(kSchemaRelease);
  info->mutable_kv_connector()->set_enabled(false);
  const ServingState::View view = state.view();
  if (view.loop == nullptr) return;  // still loading: nothing below is known yet
  const DeploymentInfo& deployment = view.deployment;
  wire::ParallelismInfo* parallelism = info->mutable_parallelism();
  parallelism->set_tensor_parallel_size(static_cast<uint32_t>(deployment.tensor_parallel_size));
  parallelism->set_pipeline_parallel_size(1);
  parallelism->set_data_parallel_size(1);
  parallelism->set_data_parallel_rank(0);
  parallelism->set_data_parallel_start_rank(0);
  parallelism->set_decode_context_parallel_size(1);
  wire::DeploymentCapacity* capacity = info->mutable_capacity();
  capacity->set_kv_block_size(static_cast<uint32_t>(deployment.kv_block_tokens));
  capacity->set_total_kv_blocks(static_cast<uint64_t>(deployment.limits.kv_blocks));
  capacity->set_max_running_requests(static_cast<uint64_t>(deployment.limits.max_num_seqs));
  capacity->set_max_batched_tokens(static_cast<uint64_t>(deployment.limits.max_num_batched_tokens));
  capacity->set_max_loras(0);
  if (deployment.transport_report) {
    const TransportReport report = deployment.transport_report();
    set_text(info->mutable_extra(), "transport", report.rung);
    if (const std::string waits = to_text(report.waits); !waits.empty())
      set_text(info->mutable_extra(), "waits", waits);
  }
  set_text(info->mutable_extra(), "kernels", deployment.kernels);
  set_text(info->mutable_extra(), "arithmetic", deployment.arithmetic);
  if (!deployment.gpus.empty()) set_text(info->mutable_extra(), "gpus", deployment.gpus);
}

void write_model_info(const ServedModel& model, const std::string& served_name, bool priorities,
                      wire::ModelInfo* info) {
  info->set_model_id(model.name);
  info->set_served_model_name(served_name);
  info->set_max_context_length(static_cast<uint32_t>(model.max_model_len));
  // A prompt has at least one token.
  info->set_max_output_tokens(static_cast<uint32_t>(model.max_model_len - 1));
  info->add_tokenizer_modes("auto");
  info->set_supports_text_input(true);
  info->set_supports_token_ids_input(true);
  info->set_supports_lora(false);
  info->set_supports_multimodal(false);
  wire::GenerationCapabilities* generation = info->mutable_generation();
  generation->mutable_prompt_logprobs()->set_supported(false);
  wire::LogprobCapabilities* logprobs = generation->mutable_output_logprobs();
  logprobs->set_supported(true);
  logprobs->add_candidate_selection_modes(wire::CANDIDATE_TOKEN_SELECTION_MODE_TOP_N);
  logprobs->set_max_top_n(kMaxLogprobs);
  generation->mutable_guided_decoding()->set_supported(false);
  generation->set_max_num_sequences(1);
  generation->set_supports_priority(priorities);
  generation->set_supports_stop_in_output(true);
  // Both are supported, because requests never share a KV block.
  generation->set_supports_cache_salt(true);
  generation->set_supports_prefix_cache_bypass(true);
  google::protobuf::Struct* extra = info->mutable_extra();
  set_text(extra, "model_type", model.config.model_type);
  set_number(extra, "vocab_size", model.config.vocab_size);
  set_number(extra, "num_hidden_layers", model.config.num_hidden_layers);
  set_number(extra, "hidden_size", model.config.hidden_size);
  set_number(extra, "num_attention_heads", model.config.num_attention_heads);
  set_number(extra, "num_key_value_heads", model.config.num_key_value_heads);
}

template <typename Load>
void write_counts(const EngineLoad& load, Load* info) {
  info->set_running_requests(static_cast<uint32_t>(load.running));
  info->set_queued_requests(static_cast<uint32_t>(load.waiting));
  info->set_used_kv_blocks(static_cast<uint64_t>(load.used_kv_blocks));
  info->set_total_kv_blocks(static_cast<uint64_t>(load.total_kv_blocks));
}

void write_load(const ServingState& state, bool per_rank, wire::LoadInfo* info) {
  info->set_instance_id(state.instance_id());
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  info->set_timestamp_unix_nanos(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
  const ServingState::View view = state.view();
  if (view.loop == nullptr) return;
  const EngineLoad load = view.loop->load();
  write_counts(load, info);
  info->set_active_kv_sessions(0);
  info->set_running_tokens(static_cast<uint64_t>(load.running_tokens));
  info->set_waiting_tokens(static_cast<uint64_t>(load.waiting_tokens));
  set_number(info->mutable_attributes(), "preemptions", static_cast<double>(load.preemptions));
  set_number(info->mutable_attributes(), "queued_bytes",
             static_cast<double>(view.loop->queued_bytes()));
  if (!per_rank) return;
  wire::RankLoadInfo* rank = info->add_ranks();
  rank->set_data_parallel_rank(0);
  write_counts(load, rank);
}

/// The places of the methods in the service's definition.
enum Method {
  kGetServerInfo,
  kGetModelInfo,
  kGetLoad,
  kHealth,
  kAbort,
  kLoadLora,
  kUnloadLora,
  kListLoras,
  kGetKvEventSources,
  kSubscribeKvEvents
};

class ControlService final : public WithByteMethods<wire::Control::CallbackService> {
 public:
  explicit ControlService(ServiceParts parts) : parts_(std::move(parts)) {
    const Check key = [this](const Context& context) { return check_key(context, parts_); };
    answer<wire::GetServerInfoRequest, wire::ServerInfo>(
        kGetServerInfo, key, [this](const wire::GetServerInfoRequest&, wire::ServerInfo* info) {
          write_server_info(*parts_.state, info);
          return grpc::Status::OK;
        });
    answer<wire::GetModelInfoRequest, wire::ModelInfo>(
        kGetModelInfo, key,
        [this](const wire::GetModelInfoRequest& request, wire::ModelInfo* info) {
          return model_info(request, info);
        });
    answer<wire::GetLoadRequest, wire::LoadInfo>(
        kGetLoad, key, [this](const wire::GetLoadRequest& request, wire::LoadInfo* info) {
          write_load(*parts_.state, request.include_per_rank(), info);
          return grpc::Status::OK;
        });
    stream_bytes(kHealth, [this](Context*) { return make_health_call(parts_.state); });
    answer<wire::AbortRequest, wire::AbortResponse>(
        kAbort, key, [this](const wire::AbortRequest& request, wire::AbortResponse* response) {
          return to_grpc_status(abort(request, response));
        });
    refuse(kLoadLora, "LoadLora: this server has no LoRA adapters");
    refuse(kUnloadLora, "UnloadLora: this server has no LoRA adapters");
    refuse(kListLoras, "ListLoras: this server has no LoRA adapters");
    refuse(kGetKvEventSources, "GetKvEventSources: this server publishes no KV events");
    stream_bytes(kSubscribeKvEvents, [](Context*) {
      return refuse_call({grpc::StatusCode::UNIMPLEMENTED,
                          "SubscribeKvEvents: this server publishes no KV events"});
    });
  }

 private:
  grpc::Status model_info(const wire::GetModelInfoRequest& request, wire::ModelInfo* info) const {
    SHOAL_RETURN_IF_ERROR(
        to_grpc_status(parts_.state->check_model(request.model()), {.reason = "MODEL_NOT_FOUND"}));
    const ServingState::View view = parts_.state->view();
    if (view.model == nullptr) return to_grpc_status(model_is_loading());
    write_model_info(*view.model, parts_.state->served_name(), view.deployment.priorities, info);
    return grpc::Status::OK;
  }

  Status abort(const wire::AbortRequest& request, wire::AbortResponse* response) {
    response->set_status(wire::ABORT_STATUS_ABORTED);
    switch (request.target_case()) {
      case wire::AbortRequest::kRequestId:
        switch (parts_.intake->abort(request.request_id())) {
          case Intake::AbortOutcome::kAborted:
            return {};
          case Intake::AbortOutcome::kFinished:
            response->set_status(wire::ABORT_STATUS_ALREADY_FINISHED);
            return {};
          case Intake::AbortOutcome::kUnknown:
            return Status::error(Code::kNotFound,
                                 cat("no request \"", request.request_id(), "\" is known here"));
        }
        return {};
      case wire::AbortRequest::kKvSession:
        return Status::error(Code::kNotFound, "this server has no KV sessions");
      case wire::AbortRequest::kAllRequests:
        response->set_message(
            counted(parts_.intake->abort_all(), "request aborted", "requests aborted"));
        return {};
      case wire::AbortRequest::TARGET_NOT_SET:
        return Status::error(Code::kInvalidArgument,
                             "target must be set: request_id, or all_requests for all");
    }
    return {};
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_control_service(const ServiceParts& parts) {
  return std::make_unique<ControlService>(parts);
}

}  // namespace shoal
