#pragma once
#include <string>
#include <vector>

#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"

#include "openengine/v1/generate.pb.h"

namespace shoal {

/// Which parts of a token's record a client asked for.
struct TokenDetail {
  bool logprob = false;
  bool candidates = false;
};

/// What a GenerateRequest asks for, in the words that every front shares. INVALID_ARGUMENT: a
/// feature that this server does not have, or a field outside its meaning; the text begins with the
/// field's path. Values are checked by resolve_request().
Result<GenerationRequest> read_generate_request(const openengine::v1::GenerateRequest& wire);
TokenDetail token_detail(const openengine::v1::GenerateRequest& wire);

/// The request as a GenerateRequest: what `shoal client` sends. INVALID_ARGUMENT: a number that the
/// wire type cannot hold.
Result<openengine::v1::GenerateRequest> write_generate_request(const GenerationRequest& request);

/// The events, over a cleared response.
void write_token_event(const std::vector<SampledToken>& tokens, std::string text,
                       const Tokenizer& tokenizer, const TokenDetail& detail,
                       openengine::v1::GenerateResponse* response);
/// GenerationFinished, or EngineError where the request failed; with the usage. `draining`: the
/// server is going away, so a cancelled request was none of its client's doing.
void write_end_event(const OutputEnd& end, bool draining,
                     openengine::v1::GenerateResponse* response);

}  // namespace shoal
