#pragma once
#include <memory>

#include "server/serving/serving_state.h"

namespace grpc {
class Service;
}

namespace shoal {

/// openengine.v1.Control for `state`. It reports what is served, the load and the health, and it
/// ends requests. The calls for LoRA adapters and KV transfer are UNIMPLEMENTED.
std::unique_ptr<grpc::Service> make_control_service(std::shared_ptr<ServingState> state);

}  // namespace shoal
