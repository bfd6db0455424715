#include "server/intake/request_log.h"

#include <chrono>

#include "runtime/base/log.h"

namespace shoal {

void log_request_end(std::string_view front, std::string_view method, Code code,
                     const OutputEnd* end, RunningClock::duration took,
                     const LiveRequest* request) {
  const OutputEnd none;
  if (end == nullptr) end = &none;
  const std::string name = code_name(code);
  log_info(cat(front, " ", method, ": status ", name, ", ", end->prompt_tokens, " + ",
               end->completion_tokens, " tokens, ",
               std::chrono::duration_cast<std::chrono::milliseconds>(took).count(), " ms",
               request != nullptr ? cat(", request ", request->id()) : std::string()),
           {{"event", cat(front, "_request")},
            {"method", method},
            {"code", name},
            {"request_id", request != nullptr ? LogValue(request->id()) : LogValue()},
            {"finish", end->how ? LogValue(end_name(*end->how)) : LogValue()},
            {"prompt_tokens", end->prompt_tokens},
            {"completion_tokens", end->completion_tokens},
            {"queue_ms", milliseconds_of(end->queue_s)},
            {"first_token_ms", milliseconds_of(end->first_token_s)},
            {"took_ms", milliseconds_of(std::chrono::duration<double>(took).count())}});
}

}  // namespace shoal
