#include "server/http/health_route.h"

#include <cstdio>

#include "runtime/base/log.h"

namespace shoal {

namespace {

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string transport_json(const ServingState::View& view) {
  if (!view.deployment.transport_report) return "";
  const TransportReport report = view.deployment.transport_report();
  return cat(",\"transport\":\"", json_escape(report.rung), "\",\"degraded\":",
             report.degraded() ? cat('"', json_escape(summary(report)), '"') : "null");
}

}  // namespace

HttpResponse health_response(const HttpParts& parts, bool with_details) {
  const ServingState::View view = parts.state->view();
  const Readiness state = readiness(view);
  std::string body = cat("{\"status\":\"", readiness_name(state), '"');
  if (view.loop != nullptr)
    body += cat(",\"seconds_since_progress\":", seconds(view.loop->seconds_since_progress()));
  if (with_details) body += transport_json(view);
  HttpResponse response{.status = state == Readiness::kReady ? 200 : 503, .body = body + "}"};
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

HttpResponse live_response(const HttpParts& parts) {
  const bool alive = !parts.front_alive || parts.front_alive();
  return {.status = alive ? 200 : 503,
          .headers = {{"Cache-Control", "no-store"}},
          .body = alive ? "{\"status\":\"alive\"}"
                        : "{\"status\":\"a thread of the gRPC front does not answer\"}"};
}

}  // namespace shoal
