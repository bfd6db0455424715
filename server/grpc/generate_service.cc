#include "server/grpc/generate_service.h"

#include <charconv>
#include <grpcpp/grpcpp.h>
#include <map>
#include <utility>

#include "server/grpc/generate_stream.h"
#include "server/grpc/grpc_status.h"

#include "openengine/v1/services.grpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

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

/// Checks the openengine-* keys, which may have at most one value each, in the right form. The
/// priority has no effect, and GetModelInfo does not advertise it.
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

/// A call that ends with an error before it becomes a stream.
class RefusedCall final : public GenerateStream::Reactor {
 public:
  explicit RefusedCall(const grpc::Status& why) { Finish(why); }
  void OnDone() override { delete this; }  // gRPC calls this once, as the last call
};

/// How long until an idle connection may have made room for another one.
constexpr int kConnectionsFullRetryMs = 1000;

/// Checks the deadline, the connection and the metadata of a call.
grpc::Status check_call(const grpc::CallbackServerContext& context,
                        Connections& connections) {
  if (deadline_passed(context))
    return to_grpc_status(
        Status::error(Code::kDeadlineExceeded, "the deadline had passed when the request came"));
  if (connections.over_limit(context.peer()))
    return to_grpc_status(
        Status::error(Code::kResourceExhausted,
                      cat("too many connections: of at most ", connections.most(),
                          " open descriptors (ulimit -n, less what the ranks need) none is free, so "
                          "this connection is for health checks alone")),
        {.reason = "TOO_MANY_CONNECTIONS", .retry_ms = kConnectionsFullRetryMs});
  return to_grpc_status(check_metadata(context.client_metadata()), {.reason = "INVALID_METADATA"});
}

class GenerateService final : public wire::Inference::CallbackService {
 public:
  GenerateService(std::shared_ptr<ServingState> state, std::shared_ptr<Connections> connections)
      : state_(std::move(state)), connections_(std::move(connections)) {}

  GenerateStream::Reactor* Generate(grpc::CallbackServerContext* context,
                                    const wire::GenerateRequest* request) override {
    if (const grpc::Status refusal = check_call(*context, *connections_); !refusal.ok())
      return new RefusedCall(refusal);
    if (const Status status = state_->check_model(request->model()); !status.ok())
      return new RefusedCall(to_grpc_status(status, {.reason = "MODEL_NOT_FOUND"}));
    Result<GenerationRequest, WireRefusal> read = read_generate_request(*request);
    if (!read.ok()) {
      const WireRefusal refusal = read.error();
      return new RefusedCall(
          to_grpc_status(refusal.status, {.reason = "INVALID_REQUEST", .field = refusal.field}));
    }
    const std::string id = request->request_id().empty() ? make_uuid() : request->request_id();
    const auto stream = std::make_shared<GenerateStream>(state_, id, token_detail(*request));
    return stream->start(context, std::move(read).value());
  }

 private:
  const std::shared_ptr<ServingState> state_;
  const std::shared_ptr<Connections> connections_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_generate_service(std::shared_ptr<ServingState> state,
                                                     std::shared_ptr<Connections> connections) {
  return std::make_unique<GenerateService>(std::move(state), std::move(connections));
}

}  // namespace shoal
