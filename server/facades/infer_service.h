#pragma once
#include <memory>

#include "server/grpc/generate_call.h"

namespace grpc {
class Service;
}

namespace shoal {

inline constexpr char kInferService[] = "inference.GRPCInferenceService";

/// inference.GRPCInferenceService: the Open Inference Protocol of KServe, with what Triton adds for
/// answers that stream.
std::unique_ptr<grpc::Service> make_infer_service(const ServiceParts& parts);

}  // namespace shoal
