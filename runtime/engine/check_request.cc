#include "runtime/engine/check_request.h"

#include "runtime/base/counted.h"
#include "runtime/base/kv_block.h"

namespace shoal {

RequestError check_request(const EngineLimits& limits, const EngineRequest& request) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) return invalid_field(RequestField::kPrompt, "the prompt has no tokens");
  if (request.max_tokens < 1) {
    return invalid_field(RequestField::kMaxTokens,
                         cat("max_tokens must be at least 1, not ", request.max_tokens));
  }
  const auto prompt = [prompt_tokens] {
    return cat("the prompt has ", counted(prompt_tokens, "token"), "; with one to generate, ");
  };
  if (prompt_tokens + 1 > limits.max_model_len) {
    return invalid_field(RequestField::kPrompt,
                         cat(prompt(), "the model length is ", limits.max_model_len));
  }
  const int64_t cached = int64_t{limits.kv_blocks} * kBlockTokens;
  if (prompt_tokens + 1 > cached) {
    return invalid_field(RequestField::kPrompt, cat(prompt(), "the whole KV cache holds ", cached,
                                                    " (give --kv-cache-memory more)"));
  }
  return {};
}

}  // namespace shoal
