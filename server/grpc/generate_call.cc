#include "server/grpc/generate_call.h"

#include <grpcpp/grpcpp.h>
#include <string_view>

#include "server/grpc/grpc_status.h"

namespace shoal {

namespace {

class RefusedCall final : public ByteReactor {
 public:
  explicit RefusedCall(const grpc::Status& why) { Finish(why); }
  void OnDone() override { delete this; }  // gRPC calls this once, as the last call
};

}  // namespace

grpc::Status check_key(const grpc::CallbackServerContext& context, const ServiceParts& parts) {
  // gRPC sorts all metadata of a call when one of them is asked for, and here they may be millions.
  if (parts.connections->has_closed(context.peer())) return grpc::Status::CANCELLED;
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  const bool brought = found != metadata.end();
  const std::string_view value =
      brought ? std::string_view(found->second.data(), found->second.size()) : std::string_view();
  if (parts.keys->allow(value)) return grpc::Status::OK;
  return to_grpc_status(
      Status::error(Code::kUnauthenticated,
                    brought ? "the API key is not valid here"
                            : "this server needs an API key: send it as metadata \"authorization: "
                              "Bearer KEY\""),
      {.reason = "INVALID_API_KEY"});
}

grpc::Status check_call(const grpc::CallbackServerContext& context, const ServiceParts& parts) {
  SHOAL_RETURN_IF_ERROR(check_key(context, parts));
  if (deadline_passed(context))
    return to_grpc_status(
        Status::error(Code::kDeadlineExceeded, "the deadline had passed when the request came"));
  if (!parts.connections->over_limit(context.peer())) return grpc::Status::OK;
  return to_grpc_status(
      refuse(NotTaken::kTooManyConnections,
             cat("too many connections: of at most ", parts.connections->most(),
                 " open descriptors (ulimit -n, less what the ranks need) none is free, so "
                 "this connection is for health checks alone")));
}

ByteReactor* refuse_call(const grpc::Status& why) {
  return new RefusedCall(why);
}

ByteReactor* start_call(const ServiceParts& parts, std::shared_ptr<const Dialect> dialect,
                        grpc::CallbackServerContext* context, std::optional<int64_t> priority) {
  if (const grpc::Status refusal = check_call(*context, parts); !refusal.ok())
    return refuse_call(refusal);
  return std::make_shared<GenerateStream>(parts, std::move(dialect), *context, priority)
      ->start(context);
}

}  // namespace shoal
