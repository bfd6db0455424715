#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "server/commands/client_connection.h"

namespace shoal {

/// Which of a server's two ports a call goes to: prompts to that of gRPC, chats to that of HTTP.
enum class ServerPort { kGrpc, kHttp };

/// Where `shoal serve` usually has that port, on the host of the address: "localhost:50051".
std::string usual_address(const HttpAddress& address, ServerPort port);

/// Reads HOST:PORT, http://HOST:PORT, https://HOST:PORT (also with / or /v1 at its end) or
/// unix:PATH. INVALID_ARGUMENT: it is none of them. If only the port is missing, the message says
/// what to type for a call to this one.
Result<HttpAddress> parse_http_address(std::string_view text, ServerPort wanted);

/// A server, and how it is spoken to.
struct ChatServer {
  HttpAddress address;
  TlsClient tls = nullptr;  ///< null: plain
};
/// The server of the flags. It is encrypted if it is named with https://, or if the flags have
/// certificates. Errors: those of parse_http_address() and make_tls_client().
Result<ChatServer> find_chat_server(const ClientFlags& flags);

/// A request, whose body is JSON.
struct HttpCall {
  std::string method;  ///< "POST"
  std::string path;
  std::string api_key = {};  ///< empty: none
  std::string body = {};
};

/// Sends the request and reads the answer. `on_body` is given the answer's status and the bytes of
/// its body as they come; an error of it ends the call. The call is ended, and the server notices
/// that, once stop_fd can be read. Errors: UNAVAILABLE: no server is there; ABORTED: it has the
/// request, and leaves before its answer is whole; FAILED_PRECONDITION: it does not speak HTTP/1.1;
/// CANCELLED: stop_fd; DEADLINE_EXCEEDED: the answer is not whole by the deadline; those of
/// on_body.
Status http_call(const ChatServer& server, const HttpCall& call, int stop_fd, Deadline deadline,
                 const std::function<Status(int status, std::string_view bytes)>& on_body);

/// Waits until the server says anything to a GET of /health. A port may take connections and then
/// be silent, for example because the server behind a forwarded port is not there yet. Errors:
/// those of ClientConnection; UNAVAILABLE also if nothing has come by the deadline.
Status wait_for_http(const ChatServer& server, int stop_fd, Deadline deadline);

}  // namespace shoal
