#pragma once
#include <memory>

#include "server/grpc/connections.h"
#include "server/serving/serving_state.h"

namespace grpc {
class Service;
}

namespace shoal {

/// openengine.v1.Inference for `state`. It checks what only gRPC has (metadata, deadline, fields of
/// the wire format). GenerateStream does the rest of a call. On a connection beyond the limit of
/// `connections` every call is refused.
std::unique_ptr<grpc::Service> make_generate_service(std::shared_ptr<ServingState> state,
                                                     std::shared_ptr<Connections> connections);

}  // namespace shoal
