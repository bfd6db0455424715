#pragma once
#include <grpcpp/support/status.h>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// The details that a client receives with the status of a refusal. Each that is set is added to
/// the google.rpc.Status in grpc-status-details-bin: ErrorInfo with the reason, RetryInfo, and
/// BadRequest with the field.
struct RefusalInfo {
  std::string_view reason = {};
  int retry_ms = 0;
  std::string_view field = {};  ///< the path in GenerateRequest: "sampling.temperature"
};

/// Converts our error to a gRPC status.
grpc::Status to_grpc_status(const Status& status, const RefusalInfo& info = {});
grpc::Status to_grpc_status(const RefusedRequest& refused);

/// The path of a field in GenerateRequest; "" for kNone.
std::string_view field_path(RequestField field);

/// The chain of causes on one line: "no transport; because: /dev/shm is full". At most 1900 bytes,
/// cut between characters.
std::string explain(const Status& status);

}  // namespace shoal
