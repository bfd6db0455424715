#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/grpc/connections/connections.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}

namespace shoal {

/// Tells `connections` when a call of any service begins and ends and when a message of it has
/// come, also of gRPC's own services (health, reflection). A call whose one request gRPC itself
/// reads (health) begins here when that is whole. By their definitions calls of some of these
/// services' methods may bring several messages; a call of any other method brings one. (For gRPC
/// all of our methods have streams, and what comes after the first question of a reflection is
/// short.)
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> make_call_watch(
    std::shared_ptr<Connections> connections, const std::vector<std::string>& services);

}  // namespace shoal
