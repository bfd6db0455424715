#include "server/facades/vllm_service.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <fstream>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/json.h"
#include "server/facades/token_rate.h"
#include "server/facades/vllm_dialect.h"
#include "server/grpc/grpc_status.h"
#include "server/serving/tokenizer_archive.h"

#include "vllm/engine.grpc.pb.h"

namespace shoal {

namespace engine = vllm::grpc::engine;

namespace {

/// "<boot id>:<device number>" of /dev/shm, as vLLM's server and its gateway write it; empty if it
/// is not known.
std::string shm_namespace_id() {
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  struct stat shm {};
  if (boot_id.empty() || ::stat("/dev/shm", &shm) != 0) return "";
  return cat(boot_id, ":", shm.st_dev);
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  return text;
}

/// The defaults of generation_config.json as compact JSON; "" if there are none.
std::string sampling_defaults(const GenerationConfig& generation) {
  Json defaults = Json::object();
  // Through their shortest text, because a float as a double has digits that nobody wrote.
  const auto number = [](float value) { return Json::parse(json_float(value)); };
  if (generation.temperature) defaults["temperature"] = number(*generation.temperature);
  if (generation.top_p) defaults["top_p"] = number(*generation.top_p);
  if (generation.top_k) defaults["top_k"] = *generation.top_k;
  if (generation.min_p) defaults["min_p"] = number(*generation.min_p);
  if (generation.repetition_penalty)
    defaults["repetition_penalty"] = number(*generation.repetition_penalty);
  return defaults.empty() ? "" : json_text(defaults);
}

void write_model_info(const ServedModel& model, engine::GetModelInfoResponse* info) {
  info->set_model_path(to_valid_utf8(model.dir));
  info->set_is_generation(true);
  info->set_max_context_length(static_cast<uint32_t>(model.max_model_len));
  info->set_max_req_input_len(model.max_model_len - 1);  // an answer has at least one token
  info->set_vocab_size(static_cast<uint32_t>(model.config.vocab_size));
  info->set_tokenizer_path(info->model_path());
  info->set_model_type(model.config.model_type);
  info->add_architectures(model.config.architecture);
  const std::vector<int32_t>& eos = model.generation.eos_token_ids.empty()
                                        ? model.config.eos_token_ids
                                        : model.generation.eos_token_ids;
  for (const int32_t id : eos) info->add_eos_token_ids(id);
  info->set_bos_token_id(model.config.bos_token_id.value_or(0));
  info->set_default_sampling_params_json(sampling_defaults(model.generation));
}

void write_load(const EngineLoad& load, const DeploymentInfo& deployment, double tokens_per_s,
                engine::SchedulerLoad* out) {
  const int64_t block = deployment.kv_block_tokens;
  const auto narrow = [](int64_t value) {
    return static_cast<int32_t>(std::min<int64_t>(value, INT32_MAX));
  };
  out->set_num_running_reqs(load.running);
  out->set_num_waiting_reqs(load.waiting);
  out->set_num_total_reqs(load.running + load.waiting);
  out->set_num_used_tokens(narrow(load.used_kv_blocks * block));
  out->set_max_total_num_tokens(narrow(load.total_kv_blocks * block));
  out->set_max_running_requests(deployment.limits.max_num_seqs);
  out->set_num_waiting_uncached_tokens(narrow(load.waiting_tokens));
  out->set_gen_throughput(tokens_per_s);
  if (load.total_kv_blocks > 0)
    out->set_token_usage(static_cast<double>(load.used_kv_blocks) / load.total_kv_blocks);
  if (deployment.limits.max_num_seqs > 0)
    out->set_utilization(static_cast<double>(load.running) / deployment.limits.max_num_seqs);
}

/// Sends the archive in pieces. gRPC owns it.
class ArchiveCall final : public ByteReactor {
 public:
  explicit ArchiveCall(std::shared_ptr<const TokenizerArchive> archive)
      : archive_(std::move(archive)) {
    send();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the client is gone"});
    send();
  }
  void OnDone() override { delete this; }

 private:
  void send() {
    constexpr size_t kChunkBytes = size_t{64} << 10;
    smg::grpc::common::GetTokenizerChunk chunk;
    chunk.set_data(archive_->zip.substr(sent_, kChunkBytes));
    sent_ += chunk.data().size();
    const bool last = sent_ == archive_->zip.size();
    if (last) chunk.set_sha256(archive_->sha256);
    bytes_ = to_bytes(chunk);
    if (!last) return StartWrite(&bytes_);
    StartWriteAndFinish(&bytes_, grpc::WriteOptions(), grpc::Status::OK);
  }

  const std::shared_ptr<const TokenizerArchive> archive_;
  size_t sent_ = 0;
  grpc::ByteBuffer bytes_;
};

/// The places of the methods in the service's definition.
enum VllmMethod {
  kGenerate,
  kHealthCheck,
  kAbort,
  kGetModelInfo,
  kGetServerInfo,
  kGetLoads,
  kGetTokenizer
};

class VllmService final : public WithByteMethods<engine::VllmEngine::CallbackService> {
 public:
  explicit VllmService(ServiceParts parts)
      : parts_(std::move(parts)), dialect_(make_vllm_dialect()) {
    const Check key = [this](const Context& context) { return check_key(context, parts_); };
    const Check none = [](const Context&) { return grpc::Status::OK; };
    stream_bytes(kGenerate, [this](Context* context) {
      last_request_s_ = std::time(nullptr);
      return start_call(parts_, dialect_, context);
    });
    answer<engine::HealthCheckRequest, engine::HealthCheckResponse>(
        kHealthCheck, none, [this](const auto&, auto* response) {
          const Readiness now = readiness(parts_.state->view());
          response->set_healthy(now == Readiness::kReady);
          response->set_message(readiness_name(now));
          return grpc::Status::OK;
        });
    answer<engine::AbortRequest, engine::AbortResponse>(
        kAbort, key, [this](const engine::AbortRequest& request, auto*) {
          for (const std::string& id : request.request_ids()) (void)parts_.intake->abort(id);
          return grpc::Status::OK;
        });
    answer<engine::GetModelInfoRequest, engine::GetModelInfoResponse>(
        kGetModelInfo, key, [this](const auto&, auto* info) { return model_info(info); });
    answer<engine::GetServerInfoRequest, engine::GetServerInfoResponse>(
        kGetServerInfo, key, [this](const auto&, auto* info) { return server_info(info); });
    answer<engine::GetLoadsRequest, engine::GetLoadsResponse>(
        kGetLoads, key, [this](const auto&, auto* loads) { return get_loads(loads); });
    stream_bytes(kGetTokenizer, [this](Context* context) { return get_tokenizer(context); });
  }

 private:
  grpc::Status model_info(engine::GetModelInfoResponse* info) const {
    const ServingState::View view = parts_.state->view();
    if (view.model == nullptr) return to_grpc_status(model_is_loading());
    write_model_info(*view.model, info);
    info->set_served_model_name(parts_.state->served_name());
    return grpc::Status::OK;
  }

  grpc::Status server_info(engine::GetServerInfoResponse* info) const {
    const ServingState::View view = parts_.state->view();
    info->set_server_type("vllm-grpc");
    info->set_data_parallel_size(1);
    info->set_shm_namespace_id(shm_namespace_id());
    info->set_last_receive_timestamp(static_cast<double>(last_request_s_.load()));
    info->set_uptime_seconds(static_cast<double>(std::time(nullptr) - view.started_s));
    info->set_is_paused(readiness(view) != Readiness::kReady);
    if (view.loop == nullptr) return grpc::Status::OK;
    const EngineLoad load = view.loop->load();
    info->set_active_requests(static_cast<uint32_t>(load.running + load.waiting));
    info->set_block_size(view.deployment.kv_block_tokens);
    info->set_max_num_seqs(view.deployment.limits.max_num_seqs);
    info->set_model_dtype(cat("torch.", dtype_name(view.model->config.dtype)));
    return grpc::Status::OK;
  }

  grpc::Status get_loads(engine::GetLoadsResponse* response) {
    const ServingState::View view = parts_.state->view();
    response->set_timestamp(time_text());
    response->set_version(SHOAL_VERSION);
    response->set_dp_rank_count(1);
    engine::SchedulerLoad* load = response->add_loads();
    if (view.loop != nullptr)
      write_load(view.loop->load(), view.deployment, rate_.look(view.loop->counts()), load);
    return grpc::Status::OK;
  }

  ByteReactor* get_tokenizer(Context* context) const {
    if (const grpc::Status refusal = check_call(*context, parts_); !refusal.ok())
      return refuse_call(refusal);
    const ServingState::View view = parts_.state->view();
    if (view.model == nullptr) return refuse_call(to_grpc_status(model_is_loading()));
    if (view.model->tokenizer_files == nullptr)
      return refuse_call({grpc::StatusCode::FAILED_PRECONDITION,
                          "this server does not have the files of its tokenizer"});
    return new ArchiveCall(view.model->tokenizer_files);
  }

  const ServiceParts parts_;
  const std::shared_ptr<const Dialect> dialect_;
  std::atomic<std::time_t> last_request_s_ = 0;
  TokenRate rate_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_vllm_service(const ServiceParts& parts) {
  return std::make_unique<VllmService>(parts);
}

}  // namespace shoal
