#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/cat.h"

namespace shoal {

/// The line below an answer that ended because it became too long, with the flag that set the
/// length. tokens: of the answer, or 0 if nobody has counted them. whose: whose --max-model-len
/// that is, if not this command's, such as "the server's ".
inline std::string length_text(std::optional<int64_t> max_tokens, int64_t tokens,
                               const char* whose = "") {
  if (tokens == 0) return "finish reason length";  // nobody has counted them
  return cat("finish reason length: the answer stopped at ",
             max_tokens == tokens ? cat("--max-tokens ", tokens)
                                  : cat(whose, "--max-model-len, which counts the prompt too"));
}

}  // namespace shoal
