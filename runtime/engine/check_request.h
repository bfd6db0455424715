#pragma once
#include "runtime/engine/engine_limits.h"
#include "runtime/engine/request.h"
#include "runtime/engine/request_error.h"

namespace shoal {

/// Whether an engine of these limits could ever run the request. INVALID_ARGUMENT, with the field:
/// empty prompt, max_tokens below 1, or prompt + 1 token beyond max_model_len or beyond what all
/// blocks could hold.
RequestError check_request(const EngineLimits& limits, const EngineRequest& request);

}  // namespace shoal
