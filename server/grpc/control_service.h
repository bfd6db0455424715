#pragma once
#include <memory>

#include "server/grpc/generate_call.h"

namespace grpc {
class Service;
}

namespace shoal {

/// openengine.v1.Control. It reports what is served, the load and the health, and it ends requests.
/// The calls for LoRA adapters and KV transfer are UNIMPLEMENTED.
std::unique_ptr<grpc::Service> make_control_service(const ServiceParts& parts);

}  // namespace shoal
