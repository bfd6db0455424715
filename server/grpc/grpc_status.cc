#include "server/grpc/grpc_status.h"

#include "models/tokenizer/unicode.h"

#include "google_rpc.pb.h"

namespace shoal {
namespace {

/// The detail of this type in grpc-status-details-bin, if there is one.
template <typename Detail>
std::optional<Detail> detail_of(const grpc::Status& status) {
  google::rpc::Status wire;
  Detail found;
  if (!wire.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& detail : wire.details()) {
    if (detail.UnpackTo(&found)) return found;
  }
  return std::nullopt;
}

}  // namespace

grpc::Status to_grpc_status(const Status& status, const RefusalInfo& info) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(explain(status));
  if (!info.reason.empty()) {
    google::rpc::ErrorInfo error;
    error.set_reason(std::string(info.reason));
    error.set_domain("shoal");
    wire.add_details()->PackFrom(error);
  }
  if (info.retry_ms > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(info.retry_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(info.retry_ms % 1000 * 1'000'000);
    wire.add_details()->PackFrom(retry);
  }
  if (!info.field.empty()) {
    google::rpc::BadRequest bad;
    google::rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
    // The path may contain a name of the client's choice, of any length. gRPC replaces a status
    // that is larger than 8 KiB.
    constexpr size_t kMaxFieldBytes = 256;
    violation->set_field(to_valid_utf8(info.field.substr(0, kMaxFieldBytes)));
    violation->set_description(wire.message());
    wire.add_details()->PackFrom(bad);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), wire.message(),
                      wire.SerializeAsString());
}

grpc::Status to_grpc_status(const RefusedRequest& refused, std::string_view field) {
  return to_grpc_status(
      refused.error.status,
      {.reason = reason_of(refused.why), .retry_ms = refused.retry_ms, .field = field});
}

std::optional<NotTaken> why_not_taken(const grpc::Status& status) {
  const auto info = detail_of<google::rpc::ErrorInfo>(status);
  return info ? not_taken_of(info->reason()) : std::nullopt;
}

int64_t retry_ms_of(const grpc::Status& status) {
  const auto info = detail_of<google::rpc::RetryInfo>(status);
  if (!info) return 0;
  return info->retry_delay().seconds() * 1000 + info->retry_delay().nanos() / 1'000'000;
}

}  // namespace shoal
