#pragma once
#include <vector>

#include "server/grpc/grpc_server.h"

namespace shoal {

/// The APIs of other engines that this server speaks on its gRPC port besides its own.
std::vector<GrpcFacade> all_facades();

}  // namespace shoal
