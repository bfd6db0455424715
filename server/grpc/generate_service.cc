#include "server/grpc/generate_service.h"

#include <algorithm>
#include <charconv>
#include <grpcpp/grpcpp.h>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/log.h"
#include "server/grpc/generate_wire.h"
#include "server/grpc/grpc_status.h"

#include "openengine/v1/services.grpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

constexpr size_t kMaxRequestIdBytes = 256;  // it is echoed in every message
constexpr int kLoadingRetryMs = 2000;
constexpr int kQueueFullRetryMs = 1000;
constexpr int kDrainingRetryMs = 5000;  // about what another server takes to start

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

template <typename Integer>
bool is_integer(std::string_view text, Integer* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool is_printable_ascii(std::string_view text) {
  for (const char c : text)
    if (c < 0x20 || c > 0x7E) return false;
  return !text.empty();
}

/// The openengine-* keys: at most one value each, of the right form. The priority is not acted on,
/// and not advertised.
Status check_metadata(const Metadata& metadata) {
  for (auto entry = metadata.begin(); entry != metadata.end(); ++entry) {
    const std::string_view key(entry->first.data(), entry->first.size());
    const std::string_view value(entry->second.data(), entry->second.size());
    if (!key.starts_with("openengine-")) continue;
    const auto refuse = [&](const char* what) {
      return Status::error(Code::kInvalidArgument, cat("metadata ", key, " ", what));
    };
    if (metadata.count(entry->first) > 1) return refuse("must be given once");
    uint32_t dp_rank = 0;
    int32_t priority = 0;
    if (key == "openengine-routing-key" && !is_printable_ascii(value))
      return refuse("must be non-empty ASCII");
    if (key == "openengine-priority" && !is_integer(value, &priority))
      return refuse("must be a decimal int32");
    if (key == "openengine-target-dp-rank") {
      if (!is_integer(value, &dp_rank)) return refuse("must be a decimal uint32");
      if (dp_rank != 0) return refuse("must be 0: this server has one data-parallel rank");
    }
  }
  return {};
}

bool deadline_passed(const grpc::CallbackServerContext& context) {
  return context.deadline() <= std::chrono::system_clock::now();
}

grpc::Status phase_refusal(ServingPhase phase) {
  if (phase == ServingPhase::kLoading)
    return to_grpc_status(Status::error(Code::kUnavailable, "the model is loading; try again soon"),
                          "MODEL_LOADING", kLoadingRetryMs);
  return to_grpc_status(
      Status::error(Code::kUnavailable, "the server is shutting down and takes no new requests"),
      "DRAINING", kDrainingRetryMs);
}

/// One Generate call. gRPC's threads, the loop's thread and whoever aborts meet at mutex_. It owns
/// itself until gRPC is done with it (OnDone); the loop may hold it longer.
class GenerateCall final : public grpc::ServerWriteReactor<wire::GenerateResponse>,
                           public OutputSink,
                           public LiveCall,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(std::shared_ptr<ServingState> state, grpc::CallbackServerContext* context)
      : state_(std::move(state)), context_(context) {}

  /// Admits or refuses; either way the reactor is gRPC's from then on.
  void start(const wire::GenerateRequest& request) {
    self_ = shared_from_this();
    const grpc::Status refusal = admit(request);
    if (refusal.ok()) return;
    state_->release_id(request_id_, this);
    const std::lock_guard lock(mutex_);
    finish(refusal);
  }

  void on_delta(OutputDelta delta) override {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    tokens_.insert(tokens_.end(), std::make_move_iterator(delta.tokens.begin()),
                   std::make_move_iterator(delta.tokens.end()));
    text_ += delta.text;
    pump();
  }

  void on_end(OutputEnd end) override {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    end_ = std::move(end);
    pump();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) lose_client();
    pump();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    lose_client();
    pump();
  }

  void OnDone() override {
    {
      const std::lock_guard lock(mutex_);
      context_ = nullptr;
    }
    const std::shared_ptr<GenerateCall> last = std::move(self_);
    state_->leave(request_id_, this);
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    stop_generation();
  }

  void drop_slow_reader(Clock::time_point now, std::chrono::milliseconds limit) override {
    const std::lock_guard lock(mutex_);
    if (context_ == nullptr || !writing_ || slow_ || now - write_started_ <= limit) return;
    slow_ = true;
    log_warning(cat("request ", request_id_, ": the client has not read for ", limit.count(),
                    " ms; cancelled"));
    context_->TryCancel();  // the outstanding write then fails, and OnCancel does the rest
  }

 private:
  grpc::Status admit(const wire::GenerateRequest& request);
  grpc::Status submit(ResolvedRequest request);

  // With mutex_ held. The loop holds no lock of its own while it hands out, so it may be called
  // from under ours.
  void pump();
  void stop_generation() {
    stop_ = true;
    if (loop_id_ != 0) loop_->cancel(loop_id_);
  }
  void lose_client() {
    gone_ = true;
    stop_generation();
  }
  void finish(const grpc::Status& status) {
    finished_ = true;
    Finish(status);
  }
  grpc::Status gone_status() const;

  const std::shared_ptr<ServingState> state_;
  std::shared_ptr<GenerateCall> self_;
  // Set by admit(), before anybody else can see the call.
  std::string request_id_;
  TokenDetail detail_;
  const ServedModel* model_ = nullptr;
  InferenceLoop* loop_ = nullptr;

  std::mutex mutex_;
  grpc::CallbackServerContext* context_;  // null once gRPC is done
  wire::GenerateResponse response_;       // belongs to gRPC while writing_
  std::vector<SampledToken> tokens_;      // not yet written
  std::string text_;
  std::optional<OutputEnd> end_;
  uint64_t loop_id_ = 0;
  Clock::time_point write_started_;
  bool writing_ = false;   // a write is outstanding
  bool finished_ = false;  // Finish has been called: nothing is written any more
  bool gone_ =
      false;  // the client has cancelled, or its deadline has passed, or the connection is broken
  bool stop_ = false;  // the loop is told to end the request as soon as it has an id
  bool slow_ = false;
};

/// It stands in log lines, whose ends must not be the client's to choose.
Status check_request_id(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes)
    return Status::error(
        Code::kInvalidArgument,
        cat("request_id must have at most ", kMaxRequestIdBytes, " bytes, not ", id.size()));
  if (std::any_of(id.begin(), id.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
    return Status::error(Code::kInvalidArgument, "request_id must not have control characters");
  return {};
}

grpc::Status GenerateCall::admit(const wire::GenerateRequest& request) {
  if (deadline_passed(*context_))
    return to_grpc_status(
        Status::error(Code::kDeadlineExceeded, "the deadline had passed when the request came"));
  if (const Status status = check_metadata(context_->client_metadata()); !status.ok())
    return to_grpc_status(status, "INVALID_METADATA");
  const ServingState::View view = state_->view();
  if (view.phase != ServingPhase::kReady) return phase_refusal(view.phase);
  if (const Status status = state_->check_model(request.model()); !status.ok())
    return to_grpc_status(status, "MODEL_NOT_FOUND");
  if (const Status status = check_request_id(request.request_id()); !status.ok())
    return to_grpc_status(status, "INVALID_REQUEST");
  Result<GenerationRequest> read = read_generate_request(request);
  if (!read.ok()) return to_grpc_status(read.status(), "INVALID_REQUEST");
  request_id_ = request.request_id().empty() ? make_uuid() : request.request_id();
  detail_ = token_detail(request);
  model_ = view.model;
  loop_ = view.loop;
  Result<ResolvedRequest> resolved = resolve_request(*read, *model_);
  if (!resolved.ok()) return to_grpc_status(resolved.status(), "INVALID_REQUEST");
  return submit(std::move(resolved).value());
}

grpc::Status GenerateCall::submit(ResolvedRequest request) {
  if (const Status status = state_->enter(request_id_, self_); !status.ok()) {
    if (status.code() == Code::kAlreadyExists) return to_grpc_status(status, "DUPLICATE_REQUEST");
    return phase_refusal(ServingPhase::kDraining);
  }
  Result<uint64_t> id = loop_->submit(std::move(request), self_);
  if (!id.ok()) {
    switch (id.status().code()) {
      case Code::kResourceExhausted:
        return to_grpc_status(id.status(), "QUEUE_FULL", kQueueFullRetryMs);
      case Code::kUnavailable: {
        const bool draining = state_->view().phase == ServingPhase::kDraining;
        return to_grpc_status(id.status(), draining ? "DRAINING" : "WORKER_LOST", kDrainingRetryMs);
      }
      default:
        return to_grpc_status(id.status(), "INVALID_REQUEST");
    }
  }
  const std::lock_guard lock(mutex_);
  loop_id_ = *id;
  if (stop_) stop_generation();  // aborted before there was an id to cancel
  return grpc::Status::OK;
}

/// Starts the next write, if none is outstanding and there is something to say. gRPC runs reactions
/// on its own threads, never inside StartWrite or Finish.
void GenerateCall::pump() {
  if (writing_ || finished_) return;
  if (gone_) {
    finish(gone_status());
    return;
  }
  if (!end_ && tokens_.empty() && text_.empty()) return;
  writing_ = true;
  write_started_ = Clock::now();
  response_.Clear();
  response_.set_request_id(request_id_);
  if (!tokens_.empty() || !text_.empty()) {
    write_token_event(tokens_, std::move(text_), model_->tokenizer, detail_, &response_);
    tokens_.clear();
    text_.clear();
    StartWrite(&response_);
    return;
  }
  write_end_event(*end_, state_->view().phase == ServingPhase::kDraining, &response_);
  state_->release_id(request_id_, this);
  finished_ = true;
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

grpc::Status GenerateCall::gone_status() const {
  if (slow_) return {grpc::StatusCode::CANCELLED, "the client did not read its stream"};
  if (context_ != nullptr && deadline_passed(*context_))
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline passed"};
  return {grpc::StatusCode::CANCELLED, "cancelled by the client"};
}

class GenerateService final : public wire::Inference::CallbackService {
 public:
  explicit GenerateService(std::shared_ptr<ServingState> state) : state_(std::move(state)) {}

  grpc::ServerWriteReactor<wire::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const wire::GenerateRequest* request) override {
    const auto call = std::make_shared<GenerateCall>(state_, context);
    call->start(*request);
    return call.get();  // it keeps itself
  }

 private:
  const std::shared_ptr<ServingState> state_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_generate_service(std::shared_ptr<ServingState> state) {
  return std::make_unique<GenerateService>(std::move(state));
}

}  // namespace shoal
