#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/serving/request_figures.h"

namespace shoal {

enum class HttpMethod { kGet, kHead, kPost, kOptions, kOther };

/// What the head of a request says, as far as a route needs it. A header that is absent is empty.
struct HttpRequestHead {
  HttpMethod method = HttpMethod::kOther;
  std::string method_name;  ///< as it was sent
  std::string path;         ///< without the query
  bool http_1_0 = false;
  std::string client;  ///< the peer's address without a port; "unix" for a Unix socket
  std::string host, origin, authorization, content_type, content_encoding;
  /// x-envoy-expected-rq-timeout-ms: how long the proxy waits for the answer; 0: not known.
  int64_t timeout_ms = 0;
  std::string request_id;         ///< x-request-id
  std::string preflight_headers;  ///< access-control-request-headers
};

/// The head of an answer, and its body unless it is a stream.
struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
};

/// A part of an answer. The parts are written in the order in which they are taken.
struct HttpPart {
  HttpResponse head = {};  ///< of the first part
  bool has_head = false;   ///< this is the first part
  bool stream = false;     ///< the body has no known length: it is `bytes`, part after part
  std::string bytes = {};
  bool last = false;  ///< nothing follows
};

/// What a call came to, as far as its exchange knows it.
struct CallSummary {
  std::string request_id = {};  ///< the client's, or the one that was made for it
  int prompt_tokens = 0;
  int output_tokens = 0;
  /// How its choices have ended; nullopt if one has not, or not all in the same way.
  std::optional<RequestEnd> finish = {};
  /// As in RequestTimes, of the choice that was the first to have one.
  std::optional<double> queue_s = {}, first_token_s = {};
};

}  // namespace shoal
