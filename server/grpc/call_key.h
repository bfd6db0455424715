#pragma once
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "server/serving/api_keys.h"

namespace shoal {

/// UNAUTHENTICATED unless there are no keys, or the call's metadata brings one as "authorization:
/// Bearer KEY". Every method checks it except those that tell health.
grpc::Status check_key(const grpc::ServerContextBase& context, const ApiKeys& keys);

}  // namespace shoal
