#pragma once
#include <memory>

#include "server/serving/serving_state.h"

namespace grpc {
class Service;
}

namespace shoal {

/// shoal.v1.Transport: reports on the transport of the running group.
std::unique_ptr<grpc::Service> make_transport_service(std::shared_ptr<ServingState> state);

}  // namespace shoal
