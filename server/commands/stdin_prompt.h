#pragma once
#include "runtime/base/status.h"
#include "server/serving/generation_request.h"

namespace shoal {

/// Reads the prompt from stdin if --prompt is -, or if the request has no prompt and no other input
/// is given. The newline at its end is left out, because `echo` adds one. INVALID_ARGUMENT: there
/// is nothing to read, or a person at a terminal has not asked for it; `inputs` are what the error
/// offers instead.
Status take_stdin_prompt(const char* command, const char* inputs, bool other_input,
                         GenerationRequest* request);

}  // namespace shoal
