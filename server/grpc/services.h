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

/// openengine.v1.Control. It reports what is served, the load and the health, and it ends requests.
/// The calls for LoRA adapters and KV transfer are UNIMPLEMENTED.
std::unique_ptr<grpc::Service> make_control_service(const ServiceParts& parts);

/// shoal.v1.Transport: reports on the transport of the running group.
std::unique_ptr<grpc::Service> make_transport_service(const ServiceParts& parts);

}  // namespace shoal
