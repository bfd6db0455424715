#pragma once
#include <memory>

#include "server/grpc/connections.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}

namespace shoal {

/// Tells `connections` when a call of any service begins and ends, those of gRPC's own services
/// (health, reflection) too. A request that cannot be parsed is answered with INVALID_ARGUMENT and
/// the reason, where gRPC itself would say UNIMPLEMENTED and nothing else.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> make_call_watch(
    std::shared_ptr<Connections> connections);

}  // namespace shoal
