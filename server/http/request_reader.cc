#include "server/http/request_reader.h"

#include <algorithm>
#include <boost/beast/http.hpp>
#include <charconv>

#include "server/http/asio.h"

namespace shoal {

namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

using Parser = http::request_parser<http::string_body>;

std::string text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

/// A positive number of milliseconds; 0: it is none.
int64_t milliseconds_of(boost::beast::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::max<int64_t>(value, 0) : 0;
}

HttpMethod method_of(http::verb verb) {
  switch (verb) {
    case http::verb::get:
      return HttpMethod::kGet;
    case http::verb::head:
      return HttpMethod::kHead;
    case http::verb::post:
      return HttpMethod::kPost;
    case http::verb::options:
      return HttpMethod::kOptions;
    default:
      return HttpMethod::kOther;
  }
}

HttpRequestHead read_head(const Parser::value_type& message, const std::string& client) {
  std::string target = text_of(message.target());
  // The absolute form, "http://host/path", is for proxies and must be understood by all.
  if (const size_t scheme = target.find("://");
      !target.empty() && target.front() != '/' && scheme != std::string::npos) {
    const size_t path = target.find('/', scheme + 3);
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  HttpRequestHead head;
  head.method = method_of(message.method());
  head.method_name = text_of(message.method_string());
  head.path = target.substr(0, target.find_first_of("?#"));
  head.http_1_0 = message.version() < 11;
  head.client = client;
  head.host = text_of(message[http::field::host]);
  head.origin = text_of(message[http::field::origin]);
  head.authorization = text_of(message[http::field::authorization]);
  head.content_type = text_of(message[http::field::content_type]);
  head.content_encoding = text_of(message[http::field::content_encoding]);
  head.request_id = text_of(message["x-request-id"]);
  head.timeout_ms = milliseconds_of(message["x-envoy-expected-rq-timeout-ms"]);
  head.preflight_headers = text_of(message[http::field::access_control_request_headers]);
  return head;
}

HttpError wrong_request(const error_code& error) {
  if (error == http::error::header_limit)
    return {431, "the head of the request is longer than this server reads", "",
            "HEADER_TOO_LARGE"};
  if (error == http::error::body_limit)
    return {413, "the body is longer than this server reads", "", "BODY_TOO_LARGE"};
  return {400, cat("this is not an HTTP request: ", error.message()), "", "BAD_REQUEST"};
}

}  // namespace

struct RequestReader::Impl {
  Parser parser;
};

RequestReader::RequestReader(size_t header_bytes, size_t body_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<uint32_t>(header_bytes));
  impl_->parser.body_limit(body_bytes);
  impl_->parser.eager(false);
}

RequestReader::~RequestReader() = default;

RequestReader::Progress RequestReader::read(std::string_view bytes) {
  error_code error;
  Progress progress;
  progress.used = impl_->parser.put(boost::asio::buffer(bytes), error);
  if (error == http::error::need_more) {
    progress.needs_more = true;
  } else if (error) {
    progress.wrong = wrong_request(error);
  }
  return progress;
}

void RequestReader::read_body() {
  impl_->parser.eager(true);
}

bool RequestReader::head_done() const {
  return impl_->parser.is_header_done();
}

bool RequestReader::done() const {
  return impl_->parser.is_done();
}

HttpRequestHead RequestReader::head(const std::string& client) const {
  return read_head(impl_->parser.get(), client);
}

bool RequestReader::keep_alive() const {
  return impl_->parser.get().keep_alive();
}

bool RequestReader::has_one_host() const {
  return impl_->parser.get().count(http::field::host) == 1;
}

bool RequestReader::framing_is_clear() const {
  const auto& message = impl_->parser.get();
  const size_t codings = message.count(http::field::transfer_encoding);
  return codings == 0 ||
         (codings == 1 && message.version() >= 11 &&
          boost::beast::iequals(message[http::field::transfer_encoding], "chunked"));
}

bool RequestReader::expects_continue() const {
  return boost::beast::iequals(impl_->parser.get()[http::field::expect], "100-continue");
}

std::optional<size_t> RequestReader::length() const {
  if (impl_->parser.chunked()) return std::nullopt;
  const auto said = impl_->parser.content_length();
  return said ? static_cast<size_t>(*said) : 0;
}

std::string RequestReader::take_body() {
  return std::move(impl_->parser.get().body());
}

}  // namespace shoal
