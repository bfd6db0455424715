#pragma once
#include <grpcpp/support/status.h>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// Our error as a gRPC status, with a google.rpc.Status in grpc-status-details-bin: ErrorInfo with
/// the reason (where it is not empty), RetryInfo (where retry_ms > 0), and BadRequest for an
/// INVALID_ARGUMENT whose text begins with a field.
grpc::Status to_grpc_status(const Status& status, std::string_view reason = {}, int retry_ms = 0);

/// The chain of causes on one line: "no transport; because: /dev/shm is full". At most 1900 bytes,
/// cut between characters.
std::string explain(const Status& status);

/// The request field that an error text begins with, as a path from GenerateRequest: "temperature
/// must be ..." gives "sampling.temperature". Empty if it does not begin with one.
std::string field_path(std::string_view message);

}  // namespace shoal
