#pragma once
#include <string_view>

#include "runtime/base/running_clock.h"
#include "runtime/base/status.h"
#include "server/intake/live_request.h"

namespace shoal {

/// Writes one line about a request of a front that is over, without any of its text. end: null if
/// it was not accepted or its client left before. request: null if it was not read.
void log_request_end(std::string_view front, std::string_view method, Code code,
                     const OutputEnd* end, RunningClock::duration took, const LiveRequest* request);

}  // namespace shoal
