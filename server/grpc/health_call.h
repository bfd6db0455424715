#pragma once
#include <memory>

#include "server/grpc/byte_methods.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// Reads the request of a call of Control.Health and answers it. gRPC owns the reactor.
///
/// If the request asks for it, the answer has the check "inference_probe". It never waits for the
/// requests of others: while there are some, the engine is well if a step has ended in the last
/// seconds, or as soon as the present step ends; otherwise one token is generated. Either step has
/// the deadline of every step (--step-timeout). If the ranks are lost in it, as when a device
/// hangs, the answer says so with the rank's name, and does not wait until they run again.
ByteReactor* make_health_call(std::shared_ptr<ServingState> state);

}  // namespace shoal
