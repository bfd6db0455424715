#pragma once
#include <memory>
#include <string>

#include "server/http/body_exchange.h"

namespace shoal {

/// POST /tokenize: {"prompt": TEXT, "add_special_tokens": true, "return_token_strs": false} gives
/// {"tokens", "count", "max_model_len", "token_strs"}, as vLLM's.
std::shared_ptr<BodyExchange> make_tokenize(std::shared_ptr<const HttpParts> parts,
                                            const HttpRequestHead& head, size_t length);
/// POST /detokenize: {"tokens": [ids]} gives {"prompt": TEXT}.
std::shared_ptr<BodyExchange> make_detokenize(std::shared_ptr<const HttpParts> parts,
                                              const HttpRequestHead& head, size_t length);

}  // namespace shoal
