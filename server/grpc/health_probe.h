#pragma once
#include <grpcpp/support/server_callback.h>
#include <memory>
#include <string>

#include "server/serving/serving_state.h"

#include "openengine/v1/control.pb.h"

namespace shoal {

void add_check(const char* name, openengine::v1::HealthState state, const std::string& message,
               openengine::v1::HealthResponse* response);

/// Sets the overall state to the worst of the checks.
void summarize(openengine::v1::HealthResponse* response);

/// Adds the check "inference_probe" to the response, writes that to *out and finishes the call. It
/// never waits for the requests of others: while there are some, the engine is well if a step has
/// ended in the last seconds, or as soon as the present step ends; otherwise one token is
/// generated. The reactor is gRPC's.
grpc::ServerUnaryReactor* start_health_probe(std::shared_ptr<ServingState> state,
                                             const ServedModel& model,
                                             openengine::v1::HealthResponse response,
                                             grpc::ByteBuffer* out);

}  // namespace shoal
