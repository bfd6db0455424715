#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"

namespace shoal {

/// One line of generate --jsonl over the defaults: fields are the flags' names with underscores;
/// lists may be arrays or, for stop, one string. INVALID_ARGUMENT "WHERE: ..." for syntax, an
/// unknown field (by name, with the nearest known one), a wrong type, and for prompt and prompt_ids
/// both or neither.
Result<GenerationRequest> parse_request_json(std::string_view line,
                                             const GenerationRequest& defaults,
                                             std::string_view where);

/// All that a finished request gave.
struct Completion {
  std::vector<int32_t> prompt_token_ids;
  std::vector<SampledToken> tokens;
  std::string text;
  bool with_logprobs = false;
  OutputEnd end;
};

/// {"prompt_token_ids":[...],"token_ids":[...],"text":"...","finish_reason":"stop|length","logprobs":[{"token_id":...,
/// "logprob":...,"top":[[id,logprob],...]},...] or
/// null,"usage":{"prompt_tokens":...,"completion_tokens":...}, "transport":"shm"}, without a
/// newline. A float has the fewest digits that read back as the same float32.
std::string completion_json(const Completion& completion, std::string_view transport);

}  // namespace shoal
