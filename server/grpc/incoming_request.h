#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>
#include <string>

#include "server/grpc/generate_wire.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// A Generate request as it came, in the form that does not depend on gRPC.
struct IncomingRequest {
  std::string id;  ///< the client's, or one that is made here
  TokenDetail detail;
  GenerationRequest request;
};

/// Reads a GenerateRequest from its bytes, and clears them as soon as it can. Refused with
/// INVALID_ARGUMENT and the field, if there is one: bytes that are not such a message, a text that
/// is not UTF-8, more than 64 Ki messages inside of it, 1024 stop conditions or token ids than the
/// model length, and what
/// read_generate_request() refuses; with NOT_FOUND: another model. The memory that it takes is at
/// most a few times that of the bytes.
Result<IncomingRequest, grpc::Status> read_incoming(const ServingState& state,
                                                    grpc::ByteBuffer* bytes);

}  // namespace shoal
