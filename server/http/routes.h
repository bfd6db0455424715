#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "server/http/access.h"
#include "server/http/http_exchange.h"
#include "server/http/http_parts.h"

namespace shoal {

enum class HttpRoute {
  kCompletions,
  kChat,
  kModels,
  kModel,
  kTokenize,
  kDetokenize,
  kVersion,
  kHealth,
  kLive,
  kMetrics,
  kUnknown,
};

/// The route's path as it stands in logs and metrics, such as "/v1/models/NAME". No client can make
/// it anything else.
std::string_view route_name(HttpRoute route);

/// A route as the documentation shows it.
struct RouteInfo {
  HttpRoute route;
  std::string_view path;
  bool post;       ///< POST with a body; otherwise GET and HEAD
  bool needs_key;  ///< if the server has keys
};
std::span<const RouteInfo> http_routes();

/// Everything that decides how a request is answered.
struct HttpRouting {
  std::shared_ptr<const HttpParts> parts;
  AccessRules access;
  std::shared_ptr<const ApiKeys> keys;
  bool metrics_without_key = false;
  /// This port is for probes: it serves /health, /health/live and /metrics alone.
  bool probes_only = false;
};

/// The answer to a request whose head has been read: a whole one, or the exchange that makes it
/// from the body.
struct Routed {
  HttpRoute route = HttpRoute::kUnknown;
  std::variant<HttpResponse, std::shared_ptr<HttpExchange>> answer;
};

/// length: of the body; kMaxRequestBytes if the client does not say it. over_limit: there are
/// as many requests as there may be, so that this one has to be for /health or /metrics.
Routed route_request(const HttpRequestHead& head, size_t length, bool over_limit,
                     const HttpRouting& routing);

}  // namespace shoal
