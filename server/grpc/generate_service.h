#pragma once
#include <memory>

#include "server/serving/serving_state.h"

namespace grpc {
class Service;
}

namespace shoal {

/// openengine.v1.Inference over `state`. A request's way: check, submit to the state's inference
/// loop, then write what the loop hands out, one message at a time.
std::unique_ptr<grpc::Service> make_generate_service(std::shared_ptr<ServingState> state);

}  // namespace shoal
