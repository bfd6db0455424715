#pragma once
#include <grpcpp/support/status.h>
#include <optional>
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
  std::string_view field = {};  ///< the path in the request's message: "sampling.temperature"
};

/// Converts our error to a gRPC status.
grpc::Status to_grpc_status(const Status& status, const RefusalInfo& info = {});
/// field: the path in the request's message of what the refusal is about.
grpc::Status to_grpc_status(const RefusedRequest& refused, std::string_view field = {});

/// Why a server has not taken a request, as its client reads it; nullopt: the status does not say.
std::optional<NotTaken> why_not_taken(const grpc::Status& status);
/// In how many milliseconds the client should try again, as the status tells it; 0: it does not.
int64_t retry_ms_of(const grpc::Status& status);

}  // namespace shoal
