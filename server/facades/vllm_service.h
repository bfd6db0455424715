#pragma once
#include <memory>

#include "server/grpc/generate_call.h"

namespace grpc {
class Service;
}

namespace shoal {

inline constexpr char kVllmService[] = "vllm.grpc.engine.VllmEngine";

/// vllm.grpc.engine.VllmEngine: what the gateways of vLLM ask of an engine.
std::unique_ptr<grpc::Service> make_vllm_service(const ServiceParts& parts);

}  // namespace shoal
