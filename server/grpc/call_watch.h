#pragma once
#include <memory>

#include "server/grpc/connections.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}

namespace shoal {

/// Tells `connections` when a call of any service begins and ends and when a message of it has
/// come, also of gRPC's own services (health, reflection). A call whose one request gRPC itself
/// reads (health) begins here when that is whole.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> make_call_watch(
    std::shared_ptr<Connections> connections);

}  // namespace shoal
