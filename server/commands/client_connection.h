#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "server/cli/client_flags.h"

struct ssl_ctx_st;
struct ssl_st;

namespace shoal {

/// Where an HTTP server is.
struct HttpAddress {
  std::string host, port;
  std::string unix_path;  ///< of a Unix socket; then there is no host
  bool encrypted = false;
};

/// "127.0.0.1:8000", "[::1]:8000" or "unix:PATH".
std::string shown_address(const HttpAddress& address);

/// What a client needs for TLS: OpenSSL's context.
using TlsClient = std::shared_ptr<ssl_ctx_st>;
/// INVALID_ARGUMENT, naming the flag and the file: one of them cannot be read or used.
Result<TlsClient> make_tls_client(const ClientTlsFlags& flags);

/// A connection to a server, encrypted if the address says so. Every function that waits returns
/// CANCELLED once stop_fd can be read.
class ClientConnection {
 public:
  /// tls: null unless the address is encrypted. Connecting and the handshake take at most 10 s
  /// each, and end at the deadline. UNAVAILABLE: no server answers there in time, or it is not the
  /// one that its certificate should be for; the message says what to do. FAILED_PRECONDITION: it
  /// does not encrypt. INVALID_ARGUMENT: the path is too long for a socket.
  static Result<ClientConnection> open(const HttpAddress& address, const TlsClient& tls,
                                       int stop_fd, Deadline deadline = Deadline::infinite());

  /// A server that refuses a request may answer and close before it has read all of it, so that it
  /// is no error if it takes no more.
  /// UNAVAILABLE: the deadline has passed first.
  Status send_all(std::string_view text, Deadline deadline = Deadline::infinite());
  /// Waits for bytes, and returns how many there are; 0: the server has ended the connection.
  /// UNAVAILABLE: it is broken, or nothing has come by the deadline.
  Result<size_t> receive(char* bytes, size_t size, Deadline deadline = Deadline::infinite());

 private:
  struct Free {
    void operator()(ssl_st* ssl) const;
  };
  ClientConnection(Fd socket, HttpAddress address, int stop_fd)
      : socket_(std::move(socket)), address_(std::move(address)), stop_fd_(stop_fd) {}
  Status greet(const TlsClient& tls, Deadline deadline);
  Status wait(short events, Deadline deadline);
  enum class Wait { kAgain, kEnd };
  Result<Wait> after_tls(int result, Deadline deadline);

  Fd socket_;
  HttpAddress address_;
  int stop_fd_;
  std::unique_ptr<ssl_st, Free> ssl_;  // null: plain
};

}  // namespace shoal
