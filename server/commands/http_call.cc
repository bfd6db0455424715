#include "server/commands/http_call.h"

#include "runtime/base/text_values.h"
#include "server/cli/flags.h"
#include "server/commands/http_answer.h"

namespace shoal {

namespace {

std::string request_text(const HttpAddress& address, const HttpCall& call) {
  const std::string host = address.unix_path.empty() ? shown_address(address) : "localhost";
  return cat(call.method, ' ', call.path, " HTTP/1.1\r\nHost: ", host,
             "\r\nContent-Type: application/json\r\nContent-Length: ", call.body.size(),
             "\r\nUser-Agent: shoal-client\r\nConnection: close\r\n",
             call.api_key.empty() ? "" : cat("Authorization: Bearer ", call.api_key, "\r\n"),
             "\r\n", call.body);
}

/// Whether it can be a host, and ends no line of the request's head that it stands in.
bool is_host(std::string_view text) {
  return !text.empty() && text.find_first_of("/ \t\r\n@") == std::string_view::npos;
}

/// What to type instead of an address that has all but a port. The port that is wanted comes first.
std::string with_usual_port(const HttpAddress& address, ServerPort wanted) {
  const std::string scheme = address.encrypted ? "https://" : "";
  const std::string grpc =
      cat(scheme, usual_address(address, ServerPort::kGrpc), " (gRPC) for a prompt");
  const std::string http =
      cat(scheme, usual_address(address, ServerPort::kHttp), " (HTTP) for --chat and --messages");
  const bool first = wanted == ServerPort::kGrpc;
  return cat(", which has no port; use --server ", first ? grpc : http, ", or ",
             first ? http : grpc);
}

}  // namespace

std::string usual_address(const HttpAddress& address, ServerPort port) {
  HttpAddress usual;
  usual.host = address.unix_path.empty() ? address.host : "127.0.0.1";
  usual.port = std::to_string(port == ServerPort::kGrpc ? kGrpcPort : kHttpPort);
  return shown_address(usual);
}

Result<HttpAddress> parse_http_address(std::string_view text, ServerPort wanted) {
  const auto wrong = [text](std::string_view why) {
    return Status::error(
        Code::kInvalidArgument,
        cat("--server must be HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH, not ",
            shown(text), why));
  };
  constexpr std::string_view kHttp = "http://", kHttps = "https://", kUnix = "unix:";
  std::string_view rest = text;
  if (rest.starts_with(kUnix) && rest.size() > kUnix.size())
    return HttpAddress{{}, {}, std::string(rest.substr(kUnix.size()))};
  const bool encrypted = rest.starts_with(kHttps);
  if (encrypted || rest.starts_with(kHttp)) {
    rest.remove_prefix(encrypted ? kHttps.size() : kHttp.size());
    for (const std::string_view suffix : {"/", "/v1"})
      if (rest.ends_with(suffix)) rest.remove_suffix(suffix.size());
  }
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos)
    return wrong(is_host(rest) ? with_usual_port({std::string(rest), {}, {}, encrypted}, wanted)
                               : "");
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  if (!parse_int_flag("port", port, 1, 65535).ok()) return wrong(", whose port is no port");
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!is_host(host)) return wrong("");
  return HttpAddress{std::string(host), std::string(port), {}, encrypted};
}

Result<ChatServer> find_chat_server(const ClientFlags& flags) {
  ChatServer server;
  SHOAL_ASSIGN_OR_RETURN(server.address, parse_http_address(flags.server, ServerPort::kHttp));
  if (flags.tls.any() && flags.server.starts_with("http://"))
    return Status::error(Code::kInvalidArgument,
                         "--server says http://, and --ssl-* say https://; leave one out");
  if (!flags.tls.any() && !server.address.encrypted) return server;
  server.address.encrypted = true;
  SHOAL_ASSIGN_OR_RETURN(server.tls, make_tls_client(flags.tls));
  return server;
}

Status http_call(const ChatServer& server, const HttpCall& call, int stop_fd, Deadline deadline,
                 const std::function<Status(int status, std::string_view bytes)>& on_body) {
  const auto in_time = [deadline](const Status& status) {
    return deadline.passed() && status.code() != Code::kCancelled
               ? Status::error(Code::kDeadlineExceeded, "the answer is not whole")
               : status;
  };
  Result<ClientConnection> opened =
      ClientConnection::open(server.address, server.tls, stop_fd, deadline);
  SHOAL_RETURN_IF_ERROR(in_time(opened.status()));
  ClientConnection connection = std::move(opened).value();
  SHOAL_RETURN_IF_ERROR(in_time(connection.send_all(request_text(server.address, call), deadline)));
  HttpAnswer answer;
  char bytes[16 << 10];
  while (!answer.done()) {
    const Result<size_t> received = connection.receive(bytes, sizeof bytes, deadline);
    const Status came = in_time(received.status());
    if (came.code() == Code::kUnavailable || (came.ok() && *received == 0)) {
      SHOAL_RETURN_IF_ERROR(answer.end());
      break;
    }
    SHOAL_RETURN_IF_ERROR(came);
    std::string body;
    SHOAL_RETURN_IF_ERROR(answer.take({bytes, *received}, &body));
    if (!body.empty()) SHOAL_RETURN_IF_ERROR(on_body(answer.status(), body));
  }
  // An answer without a body must be noticed too.
  return on_body(answer.status(), "");
}

Status wait_for_http(const ChatServer& server, int stop_fd, Deadline deadline) {
  SHOAL_ASSIGN_OR_RETURN(ClientConnection connection,
                         ClientConnection::open(server.address, server.tls, stop_fd));
  SHOAL_RETURN_IF_ERROR(connection.send_all(request_text(server.address, {"GET", "/health"})));
  char byte = 0;
  return connection.receive(&byte, 1, deadline).status();
}

}  // namespace shoal
