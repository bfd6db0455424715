#pragma once
#include <memory>

#include "server/grpc/generate_call.h"

namespace grpc {
class Service;
}

namespace shoal {

/// openengine.v1.Inference. It checks what only gRPC has (metadata, deadline, connection).
/// GenerateStream does the rest of a call. On a connection beyond the limit every call is refused.
std::unique_ptr<grpc::Service> make_generate_service(const ServiceParts& parts);

}  // namespace shoal
