#pragma once
#include <memory>

#include "server/grpc/connections.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}

namespace shoal {

/// Tells `connections` when a call of any service begins and ends, and while its messages are read,
/// those of gRPC's own services (health, reflection) too. A call with one request of which gRPC
/// reads the whole at once (health) begins here when that is there.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> make_call_watch(
    std::shared_ptr<Connections> connections);

}  // namespace shoal
