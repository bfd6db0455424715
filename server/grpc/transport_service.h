#pragma once
#include <memory>

#include "server/grpc/generate_call.h"

namespace grpc {
class Service;
}

namespace shoal {

/// shoal.v1.Transport: reports on the transport of the running group.
std::unique_ptr<grpc::Service> make_transport_service(const ServiceParts& parts);

}  // namespace shoal
