#include "server/http/routes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "runtime/base/log.h"
#include "server/http/generate_exchange.h"
#include "server/http/health_route.h"
#include "server/http/text_exchange.h"

namespace shoal {

namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";

constexpr RouteInfo kRoutes[] = {
    {HttpRoute::kCompletions, "/v1/completions", true, true},
    {HttpRoute::kChat, "/v1/chat/completions", true, true},
    {HttpRoute::kModels, "/v1/models", false, true},
    {HttpRoute::kModel, "/v1/models/NAME", false, true},
    {HttpRoute::kTokenize, "/tokenize", true, true},
    {HttpRoute::kDetokenize, "/detokenize", true, true},
    {HttpRoute::kVersion, "/version", false, true},
    {HttpRoute::kHealth, "/health", false, false},
    {HttpRoute::kLive, "/health/live", false, false},
    {HttpRoute::kMetrics, "/metrics", false, true},
};

const RouteInfo* find_route(std::string_view path) {
  for (const RouteInfo& entry : kRoutes) {
    if (entry.path == path && entry.route != HttpRoute::kModel) return &entry;
    if (entry.route == HttpRoute::kModel && path.size() > kModelPrefix.size() &&
        path.substr(0, kModelPrefix.size()) == kModelPrefix)
      return &entry;
  }
  return nullptr;
}

bool needs_key(const RouteInfo* entry, const HttpRouting& routing) {
  if (entry == nullptr) return true;  // a stranger does not learn which paths exist
  if (entry->route == HttpRoute::kMetrics && routing.metrics_without_key) return false;
  return entry->needs_key;
}

HttpError unknown_path() {
  return {404,
          "there is no such path here: see /v1/completions, /v1/chat/completions, /v1/models, "
          "/tokenize, /detokenize, /version, /health and /metrics",
          "", "NOT_FOUND"};
}

bool is_for_probes(HttpRoute route) {
  return route == HttpRoute::kHealth || route == HttpRoute::kLive || route == HttpRoute::kMetrics;
}

HttpError probes_only() {
  return {404,
          "this is the health port: it serves /health, /health/live and /metrics alone; everything "
          "else is on the server's own port (--port)",
          "", "NOT_FOUND"};
}

HttpResponse wrong_method(const RouteInfo& entry) {
  const char* allowed = entry.post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  HttpResponse response =
      error_response({405, cat(entry.path, " takes ", allowed), "", "METHOD_NOT_ALLOWED"});
  response.headers.emplace_back("Allow", allowed);
  return response;
}

bool is_json(const std::string& content_type) {
  std::string type = content_type.substr(0, content_type.find(';'));
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type.empty() || type == "application/json" || type.ends_with("+json");
}

/// Why the body of a request is not read.
HttpError check_body(const HttpRequestHead& head, size_t length, const HttpRouting& routing) {
  if (!head.content_encoding.empty() && head.content_encoding != "identity")
    return {415,
            "compressed bodies are not taken: send the JSON as it is, without Content-Encoding", "",
            "CONTENT_ENCODING"};
  if (!is_json(head.content_type))
    return {415, "the body must be JSON: send it with \"Content-Type: application/json\"", "",
            "CONTENT_TYPE"};
  const size_t most = routing.parts->max_body_bytes;
  if (length > most)
    return {413, cat("the body has ", length, " bytes; at most ", most, " are taken"), "",
            "BODY_TOO_LARGE"};
  return {};
}

std::shared_ptr<HttpExchange> make_exchange(HttpRoute route, const HttpRequestHead& head,
                                            size_t length, const HttpRouting& routing) {
  switch (route) {
    case HttpRoute::kCompletions:
    case HttpRoute::kChat:
      return std::make_shared<GenerateExchange>(
          routing.parts, head, length,
          route == HttpRoute::kChat ? ApiRoute::kChat : ApiRoute::kCompletions);
    case HttpRoute::kTokenize:
      return make_tokenize(routing.parts, head, length);
    default:
      return make_detokenize(routing.parts, head, length);
  }
}

std::string model_json(const ServingState::View& view, const std::string& name) {
  const std::string length = view.model == nullptr ? "null" : cat(view.model->max_model_len);
  return cat("{\"id\":\"", json_escape(name),
             "\",\"object\":\"model\",\"created\":", view.started_s,
             ",\"owned_by\":\"shoal\",\"root\":\"", json_escape(name),
             "\",\"max_model_len\":", length, '}');
}

HttpResponse models(const ServingState& state) {
  std::string list;
  for (const std::string& name : state.served_names())
    list += cat(list.empty() ? "" : ",", model_json(state.view(), name));
  return {.body = cat("{\"object\":\"list\",\"data\":[", list, "]}")};
}

/// A part of a path with its %XX as the bytes that they stand for.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    const bool escaped = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(&text[i + 1], &text[i + 3], value, 16).ptr == &text[i + 3];
    out += escaped ? static_cast<char>(value) : text[i];
    if (escaped) i += 2;
  }
  return out;
}

HttpResponse one_model(const ServingState& state, const std::string& name) {
  if (const Status status = state.check_model(name); !status.ok())
    return error_response({404, explain(status), "model", "model_not_found"});
  return {.body = model_json(state.view(), name)};
}

HttpResponse answer_now(HttpRoute route, const HttpRequestHead& head, const HttpRouting& routing) {
  const HttpParts& parts = *routing.parts;
  switch (route) {
    case HttpRoute::kModels:
      return models(*parts.state);
    case HttpRoute::kModel:
      return one_model(*parts.state,
                       decoded(std::string_view(head.path).substr(kModelPrefix.size())));
    case HttpRoute::kVersion:
      return {.body = cat("{\"version\":\"", json_escape(parts.version), "\"}")};
    case HttpRoute::kHealth:
      return health_response(parts, routing.keys->allow(head.authorization));
    case HttpRoute::kLive:
      return live_response(parts);
    default:
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .headers = {},
              .body = parts.metrics ? parts.metrics() : std::string()};
  }
}

}  // namespace

std::span<const RouteInfo> http_routes() {
  return kRoutes;
}

std::string_view route_name(HttpRoute route) {
  for (const RouteInfo& entry : kRoutes)
    if (entry.route == route) return entry.path;
  return "unknown";
}

Routed route_request(const HttpRequestHead& head, size_t length,
                     const std::function<bool()>& has_place, const HttpRouting& routing) {
  const RouteInfo* entry = find_route(head.path);
  const HttpRoute route = entry == nullptr ? HttpRoute::kUnknown : entry->route;
  const auto refuse = [route](const HttpError& error) {
    return Routed{route, error_response(error)};
  };
  if (const HttpError error = check_access(head, routing.access); !error.ok()) return refuse(error);
  // A preflight brings no key.
  if (head.method == HttpMethod::kOptions && entry != nullptr)
    return {route, preflight_response(head, routing.access)};
  if (routing.probes_only && !is_for_probes(route)) return refuse(probes_only());
  if (needs_key(entry, routing)) {
    if (const HttpError error = check_key(head, *routing.keys); !error.ok()) return refuse(error);
  }
  if (entry == nullptr) return refuse(unknown_path());
  const bool get = head.method == HttpMethod::kGet || head.method == HttpMethod::kHead;
  if (entry->post ? head.method != HttpMethod::kPost : !get) return {route, wrong_method(*entry)};
  if (!is_for_probes(route) && !has_place()) {
    constexpr const char* kWhat = "all places for requests are taken; try again soon";
    return {route,
            error_response(to_http_error(shoal::refuse(NotTaken::kTooManyConnections, kWhat))),
            true};
  }
  if (!entry->post) return {route, answer_now(route, head, routing)};
  if (const HttpError error = check_body(head, length, routing); !error.ok()) return refuse(error);
  return {route, make_exchange(route, head, length, routing)};
}

}  // namespace shoal
