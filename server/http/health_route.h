#pragma once
#include "server/http/http_message.h"
#include "server/http/http_parts.h"

namespace shoal {

/// /health: 200 if requests are taken, 503 otherwise. It is answered from memory, so that it never
/// waits for requests. The body is JSON with the state and the seconds since the last progress.
/// with_details: also the transport and why it is degraded.
HttpResponse health_response(const HttpParts& parts, bool with_details);

/// /health/live: 200 as long as the threads of the front work. One of these threads gives this
/// answer, so the answer itself shows that this thread works. A server that is busy, draining or
/// waiting for its ranks is not dead.
HttpResponse live_response(const HttpParts& parts);

}  // namespace shoal
