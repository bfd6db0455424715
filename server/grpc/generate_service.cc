#include "server/grpc/generate_service.h"

#include <algorithm>
#include <charconv>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
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

constexpr char kPriorityKey[] = "openengine-priority";

/// Checks the openengine-* keys, which may have at most one value each, in the right form.
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
    if (key == kPriorityKey && !is_integer(value, &priority))
      return refuse("must be a decimal int32");
    if (key == "openengine-target-dp-rank") {
      if (!is_integer(value, &dp_rank)) return refuse("must be a decimal uint32");
      if (dp_rank != 0) return refuse("must be 0: this server has one data-parallel rank");
    }
  }
  return {};
}

/// The priority of a call whose metadata was checked, as in GenerationRequest: lower goes first. On
/// the wire higher goes first.
int64_t priority_of(const Metadata& metadata) {
  const auto entry = metadata.find(kPriorityKey);
  int32_t priority = 0;
  if (entry != metadata.end())
    (void)is_integer(std::string_view(entry->second.data(), entry->second.size()), &priority);
  return std::min<int64_t>(-int64_t{priority}, INT32_MAX);
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
grpc::Status check_call(const grpc::CallbackServerContext& context, Connections& connections) {
  if (deadline_passed(context))
    return to_grpc_status(
        Status::error(Code::kDeadlineExceeded, "the deadline had passed when the request came"));
  if (connections.over_limit(context.peer()))
    return to_grpc_status(
        Status::error(
            Code::kResourceExhausted,
            cat("too many connections: of at most ", connections.most(),
                " open descriptors (ulimit -n, less what the ranks need) none is free, so "
                "this connection is for health checks alone")),
        {.reason = "TOO_MANY_CONNECTIONS", .retry_ms = kConnectionsFullRetryMs});
  return to_grpc_status(check_metadata(context.client_metadata()), {.reason = "INVALID_METADATA"});
}

/// gRPC gives a method that streams only its answers the whole request at once, in memory that it
/// keeps until the call ends. Therefore Generate is registered as a method that streams both ways,
/// which is the same on the wire, and reads its one request when there is room for it. The request
/// is read as bytes, because gRPC would answer UNIMPLEMENTED, with no message, if it could not
/// parse it.
class GenerateService final : public grpc::Service {
 public:
  GenerateService(StreamParts parts, std::shared_ptr<Connections> connections)
      : parts_(std::move(parts)), connections_(std::move(connections)) {
    using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, wire::GenerateResponse>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        kMethod, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodRawCallback(
        0, new Handler([this](grpc::CallbackServerContext* context) { return generate(context); }));
  }

 private:
  static constexpr char kMethod[] = "/openengine.v1.Inference/Generate";

  GenerateStream::Reactor* generate(grpc::CallbackServerContext* context) const {
    if (const grpc::Status refusal = check_call(*context, *connections_); !refusal.ok())
      return new RefusedCall(refusal);
    return std::make_shared<GenerateStream>(parts_)->start(context,
                                                           priority_of(context->client_metadata()));
  }

  const StreamParts parts_;
  const std::shared_ptr<Connections> connections_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_generate_service(StreamParts parts,
                                                     std::shared_ptr<Connections> connections) {
  return std::make_unique<GenerateService>(std::move(parts), std::move(connections));
}

}  // namespace shoal
