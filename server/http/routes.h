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
  bool without_place = false;  ///< the answer says so
};

/// length: of the body; kMaxRequestBytes if the client does not say it. has_place: whether there is
/// a place for one more request, or room is made for it, which a probe and an error do not need.
Routed route_request(const HttpRequestHead& head, size_t length,
                     const std::function<bool()>& has_place, const HttpRouting& routing);

}  // namespace shoal
