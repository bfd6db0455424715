#pragma once
#include <memory>

#include "server/grpc/connections.h"
#include "server/grpc/generate_stream.h"

namespace grpc {
class Service;
}

namespace shoal {

/// openengine.v1.Inference. It checks what only gRPC has (metadata, deadline, connection).
/// GenerateStream does the rest of a call. On a connection beyond the limit of `connections` every
/// call is refused.
std::unique_ptr<grpc::Service> make_generate_service(StreamParts parts,
                                                     std::shared_ptr<Connections> connections);

}  // namespace shoal
