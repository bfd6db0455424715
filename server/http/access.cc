#include "server/http/access.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>

namespace shoal {

namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// Text that a client sent, short enough for a message.
std::string shown(const std::string& text) {
  return text.size() <= 100 ? text : text.substr(0, 97) + "...";
}

bool lists(const std::vector<std::string>& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& one) {
    return one == "*" || lower(one) == lower(name);
  });
}

/// A page of the server itself is not cross-origin: "http://HOST" with the same Host.
bool same_origin(const HttpRequestHead& head) {
  const size_t scheme = head.origin.find("://");
  return scheme != std::string::npos && lower(head.origin.substr(scheme + 3)) == lower(head.host);
}

bool origin_allowed(const HttpRequestHead& head, const AccessRules& rules) {
  return head.origin.empty() || same_origin(head) || lists(rules.allowed_origins, head.origin);
}

}  // namespace

std::string host_without_port(const std::string& authority) {
  std::string host = lower(authority);
  if (!host.empty() && host.front() == '[') {
    const size_t end = host.find(']');
    const bool closed =
        end != std::string::npos && (end + 1 == host.size() || host[end + 1] == ':');
    return closed ? host.substr(1, end - 1) : "";
  }
  if (const size_t colon = host.find(':'); colon != std::string::npos) host.resize(colon);
  if (ends_with(host, ".")) host.pop_back();  // a fully qualified name
  return host;
}

bool is_loopback_name(const std::string& host) {
  if (host == "localhost" || ends_with(host, ".localhost")) return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

HttpError check_access(const HttpRequestHead& head, const AccessRules& rules) {
  const std::string host = host_without_port(head.host);
  if (rules.bound_to_loopback && !head.host.empty() && !is_loopback_name(host) &&
      !lists(rules.allowed_hosts, host)) {
    return {403,
            cat("the host \"", shown(head.host),
                "\" is not a name of this server, which listens on loopback only: use localhost, "
                "or start it with --allowed-hosts NAME"),
            "", "HOST_NOT_ALLOWED"};
  }
  if (origin_allowed(head, rules)) return {};
  return {403,
          cat("pages of ", shown(head.origin),
              " may not use this server: start it with --allowed-origins ORIGIN to allow them"),
          "", "ORIGIN_NOT_ALLOWED"};
}

HttpError check_key(const HttpRequestHead& head, const ApiKeys& keys) {
  if (keys.allow(head.authorization)) return {};
  return {401,
          head.authorization.empty()
              ? "this server needs an API key: send it as \"Authorization: Bearer KEY\""
              : "the API key is not valid here",
          "", "invalid_api_key"};
}

std::vector<std::pair<std::string, std::string>> cors_headers(const HttpRequestHead& head,
                                                              const AccessRules& rules) {
  if (head.origin.empty() || same_origin(head) || !lists(rules.allowed_origins, head.origin))
    return {};
  return {{"Access-Control-Allow-Origin", head.origin},
          {"Access-Control-Expose-Headers", "x-request-id, x-shoal-ignored-fields, retry-after"},
          {"Vary", "Origin"}};
}

HttpResponse preflight_response(const HttpRequestHead& head, const AccessRules& rules) {
  HttpResponse response{
      .status = 204, .content_type = "", .headers = cors_headers(head, rules), .body = {}};
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  // Which headers a page sends changes nothing here, so all of them are allowed.
  if (!head.preflight_headers.empty())
    response.headers.emplace_back("Access-Control-Allow-Headers", head.preflight_headers);
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace shoal
