#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/cat.h"

namespace shoal {

/// What is said below an answer of so many tokens that its length has ended: which flag has set
/// that length. whose: the owner of --max-model-len, if that is not this command.
inline std::string length_text(std::optional<int64_t> max_tokens, int64_t tokens,
                               const char* whose = "") {
  if (tokens == 0) return "finish reason length";  // nobody has counted them
  return cat("finish reason length: the answer stopped at ",
             max_tokens == tokens ? cat("--max-tokens ", tokens)
                                  : cat(whose, "--max-model-len, which counts the prompt too"));
}

}  // namespace shoal
