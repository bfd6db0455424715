#pragma once
#include <string>
#include <vector>

#include "server/http/http_error.h"
#include "server/http/http_message.h"
#include "server/serving/api_keys.h"

namespace shoal {

/// Which requests the HTTP front answers at all.
struct AccessRules {
  /// Origins whose pages may call: "https://chat.example", or "*" for all of them.
  std::vector<std::string> allowed_origins = {};
  /// Names of this server besides the loopback's, for a server that is bound to loopback.
  std::vector<std::string> allowed_hosts = {};
  bool bound_to_loopback = false;  ///< only then is the Host checked
};

/// 403 if a browser sends the request from a page of an origin that is not allowed. If the server
/// is bound to loopback, also if the Host is neither a loopback name or address nor allowed: a name
/// that an attacker's DNS server points to 127.0.0.1 makes a foreign page same-origin.
HttpError check_access(const HttpRequestHead& head, const AccessRules& rules);

/// 401 unless there are no keys or the request brings one: "Authorization: Bearer KEY".
HttpError check_key(const HttpRequestHead& head, const ApiKeys& keys);

/// The headers by which a browser lets a page of an allowed origin read the answer; none for other
/// requests.
std::vector<std::pair<std::string, std::string>> cors_headers(const HttpRequestHead& head,
                                                              const AccessRules& rules);
/// The answer to a preflight (OPTIONS) of an allowed origin.
HttpResponse preflight_response(const HttpRequestHead& head, const AccessRules& rules);

/// The host in "name:port", "[::1]:port" or either without a port, in small letters and without the
/// brackets. Empty: it is none.
std::string host_without_port(const std::string& authority);
/// "localhost", a name below it, 127.0.0.0/8 or ::1.
bool is_loopback_name(const std::string& host);

}  // namespace shoal
