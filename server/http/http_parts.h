#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/intake/intake.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// What the routes need of the rest of the server.
struct HttpParts {
  std::shared_ptr<ServingState> state;
  std::shared_ptr<Intake> intake;
  std::string version;
  std::function<std::string()> metrics;      ///< the text of /metrics
  std::function<bool()> front_alive;         ///< whether the threads of the other front answer
  size_t max_body_bytes = kMaxRequestBytes;  ///< of one request
  /// A stream says nothing for at most this long, because proxies cut silent connections.
  int keep_alive_ms = 15'000;
  /// The most bytes of output that wait for a client before its request is cancelled.
  size_t max_unread_bytes = size_t{4} << 20;
};

}  // namespace shoal
