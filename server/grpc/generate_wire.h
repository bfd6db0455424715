#pragma once
#include <string>

#include "server/grpc/wire_message.h"
#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"

#include "openengine/v1/generate.pb.h"

namespace shoal {

/// Which parts of a token's record a client asked for.
struct TokenDetail {
  bool logprob = false;
  bool candidates = false;
};

/// The most stop conditions that a request may have, texts and ids together.
inline constexpr int kMaxStopConditions = 1024;

/// Converts a GenerateRequest to the form that does not depend on the interface. INVALID_ARGUMENT:
/// a feature that this server does not have, or a required field that is not set. resolve_request()
/// checks the values.
Result<GenerationRequest, WireRefusal> read_generate_request(openengine::v1::GenerateRequest wire);
TokenDetail token_detail(const openengine::v1::GenerateRequest& wire);

/// Converts a request to the GenerateRequest that `shoal client` sends. INVALID_ARGUMENT: a number
/// that the wire type cannot hold.
Result<openengine::v1::GenerateRequest, RequestError> write_generate_request(
    const GenerationRequest& request);

/// Adds tokens and their text to the token event of *response, which has that event or none.
/// Returns about how many bytes longer the message is now.
size_t add_to_token_event(const OutputDelta& delta, const Tokenizer& tokenizer,
                          const TokenDetail& detail, openengine::v1::GenerateResponse* response);
/// Writes GenerationFinished, or EngineError if the request failed, and the usage. `draining`: the
/// server is shutting down, so it was the server and not the client that cancelled the request.
void write_end_event(const OutputEnd& end, bool draining,
                     openengine::v1::GenerateResponse* response);

}  // namespace shoal
