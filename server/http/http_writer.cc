#include "server/http/http_writer.h"

#include <cstdio>
#include <ctime>

#include "runtime/base/cat.h"

namespace shoal {

namespace {

const char* phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[64];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text;
}

}  // namespace

std::string head_text(const HttpResponse& response, const HeadOptions& options) {
  std::string text = cat(options.http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ", response.status, ' ',
                         phrase(response.status), "\r\nServer: shoal\r\nDate: ", date(), "\r\n");
  if (!response.content_type.empty()) text += cat("Content-Type: ", response.content_type, "\r\n");
  for (const auto& [name, value] : response.headers) text += cat(name, ": ", value, "\r\n");
  if (response.status == 401) text += "WWW-Authenticate: Bearer\r\n";
  if (!options.stream) {
    if (response.status != 204) text += cat("Content-Length: ", response.body.size(), "\r\n");
  } else if (!options.http_1_0) {
    text += "Transfer-Encoding: chunked\r\n";
  }
  if (!options.keep_alive) {
    text += "Connection: close\r\n";
  } else if (options.http_1_0) {
    text += "Connection: keep-alive\r\n";
  }
  text += "\r\n";
  if (!options.stream && !options.without_body) text += response.body;
  return text;
}

std::string chunk_text(const std::string& bytes, bool last) {
  std::string text;
  if (!bytes.empty()) {
    char size[20];
    std::snprintf(size, sizeof size, "%zx", bytes.size());
    text = cat(size, "\r\n", bytes, "\r\n");
  }
  return last ? text + "0\r\n\r\n" : text;
}

std::string continue_line() {
  return "HTTP/1.1 100 Continue\r\n\r\n";
}

}  // namespace shoal
