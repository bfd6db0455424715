#include "server/commands/client_connection.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>

#include "runtime/base/text_values.h"
#include "server/net/tls_files.h"

namespace shoal {

namespace {

constexpr int64_t kConnectMs = 10'000;

Status no_server(const HttpAddress& address, std::string_view why, int error = 0) {
  return Status::error(Code::kUnavailable,
                       cat("no server answers at ", shown_address(address),
                           ": start one with `shoal serve MODEL`, or give --server the address "
                           "after http= in the READY line of one that runs (",
                           why, ")"),
                       error);
}

Status no_tls(const HttpAddress& address) {
  ::ERR_clear_error();
  return Status::error(
      Code::kFailedPrecondition,
      cat("what answers at ", shown_address(address),
          " does not encrypt: leave out https:// and --ssl-*, or start the server with "
          "--ssl-certfile"));
}

/// Waits until the socket is ready. CANCELLED: stop_fd was ready first.
Status wait_for(int socket, short events, int stop_fd, Deadline deadline) {
  for (;;) {
    pollfd fds[] = {{socket, events, 0}, {stop_fd, POLLIN, 0}};
    const int ready = ::poll(fds, 2, deadline.remaining_ms());
    if (ready > 0 && fds[1].revents != 0) return Status::error(Code::kCancelled, "interrupted");
    if (ready > 0) return {};
    if (deadline.passed())
      return Status::error(Code::kUnavailable, "it does not answer", ETIMEDOUT);
  }
}

Result<Fd> connect_to(const sockaddr* address, socklen_t size, int stop_fd, Deadline deadline) {
  Fd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Status::error(Code::kUnavailable, "make a socket", errno);
  if (::connect(socket.get(), address, size) != 0) {
    if (errno != EINPROGRESS) return Status::error(Code::kUnavailable, "connect", errno);
    SHOAL_RETURN_IF_ERROR(
        wait_for(socket.get(), POLLOUT, stop_fd, sooner(deadline, Deadline::after_ms(kConnectMs))));
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return Status::error(Code::kUnavailable, "connect", error);
  }
  const int on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

Result<Fd> connect_unix(const HttpAddress& address, int stop_fd, Deadline deadline) {
  sockaddr_un path{};
  path.sun_family = AF_UNIX;
  if (address.unix_path.size() >= sizeof path.sun_path)
    return Status::error(Code::kInvalidArgument,
                         cat("--server ", shown_address(address), " is too long for a socket"));
  std::memcpy(path.sun_path, address.unix_path.data(), address.unix_path.size());
  return connect_to(reinterpret_cast<const sockaddr*>(&path), sizeof path, stop_fd, deadline);
}

/// A connection to the first address of the host that takes one.
Result<Fd> connect_host(const HttpAddress& address, int stop_fd, Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  if (error != 0) return Status::error(Code::kUnavailable, ::gai_strerror(error));
  Status last = Status::error(Code::kUnavailable, "the host has no address");
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Result<Fd> socket = connect_to(one->ai_addr, one->ai_addrlen, stop_fd, deadline);
    if (socket.ok() || socket.status().code() == Code::kCancelled) return socket;
    last = socket.status();
  }
  return last;
}

Result<Fd> connect_server(const HttpAddress& address, int stop_fd, Deadline deadline) {
  Result<Fd> socket = address.unix_path.empty() ? connect_host(address, stop_fd, deadline)
                                                : connect_unix(address, stop_fd, deadline);
  if (socket.ok() || socket.status().code() != Code::kUnavailable) return socket;
  const Cause cause = socket.status().causes().back();
  return no_server(address, cause.os_error != 0 ? std::strerror(cause.os_error) : cause.what);
}

/// Why OpenSSL could not use a file.
Status bad_file(const char* flag, const std::string& path) {
  return Status::error(Code::kInvalidArgument,
                       cat(flag, ' ', path, " cannot be used: ", take_tls_error()));
}

/// error: what SSL_get_error() says. If one side has something against the other, it says so
/// (FAILED_PRECONDITION). A server that has gone says nothing.
Status tls_failure(const HttpAddress& address, int error) {
  const int reason = ERR_GET_REASON(::ERR_peek_error());
  if (reason == SSL_R_WRONG_VERSION_NUMBER) return no_tls(address);
  if (error != SSL_ERROR_SSL || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
    return no_server(address, take_tls_error());
  return Status::error(
      Code::kFailedPrecondition,
      cat("TLS with the server at ", shown_address(address), " failed: ", take_tls_error()));
}

bool is_address(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

std::string shown_address(const HttpAddress& address) {
  if (!address.unix_path.empty()) return "unix:" + address.unix_path;
  const bool v6 = address.host.find(':') != std::string::npos;
  return cat(v6 ? "[" : "", address.host, v6 ? "]" : "", ":", address.port);
}

Result<TlsClient> make_tls_client(const ClientTlsFlags& flags) {
  TlsClient context(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
  if (!context) return Status::error(Code::kUnavailable, "OpenSSL has no memory");
  ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  const std::string& ca = flags.ca_certs;
  const int found = ca.empty()
                        ? ::SSL_CTX_set_default_verify_paths(context.get())
                        : ::SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr);
  if (found != 1) return bad_file("--ssl-ca-certs", ca);
  if (flags.certificate.empty()) return context;
  if (::SSL_CTX_use_certificate_chain_file(context.get(), flags.certificate.c_str()) != 1)
    return bad_file("--ssl-certfile", flags.certificate);
  const std::string& key = flags.key.empty() ? flags.certificate : flags.key;
  if (::SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1)
    return bad_file("--ssl-keyfile", key);
  return context;
}

void ClientConnection::Free::operator()(ssl_st* ssl) const {
  ::SSL_free(ssl);
}

Result<ClientConnection> ClientConnection::open(const HttpAddress& address, const TlsClient& tls,
                                                int stop_fd, Deadline deadline) {
  SHOAL_ASSIGN_OR_RETURN(Fd socket, connect_server(address, stop_fd, deadline));
  ClientConnection connection(std::move(socket), address, stop_fd);
  if (address.encrypted) SHOAL_RETURN_IF_ERROR(connection.greet(tls, deadline));
  return connection;
}

Status ClientConnection::wait(short events, Deadline deadline) {
  Status status = wait_for(socket_.get(), events, stop_fd_, deadline);
  if (status.code() != Code::kUnavailable) return status;
  return no_server(address_, "it takes the connection and then says nothing");
}

/// Waits for what OpenSSL waits for. kEnd: the connection has ended well.
Result<ClientConnection::Wait> ClientConnection::after_tls(int result, Deadline deadline) {
  const int error = ::SSL_get_error(ssl_.get(), result);
  switch (error) {
    case SSL_ERROR_WANT_READ:
      SHOAL_RETURN_IF_ERROR(wait(POLLIN, deadline));
      return Wait::kAgain;
    case SSL_ERROR_WANT_WRITE:
      SHOAL_RETURN_IF_ERROR(wait(POLLOUT, deadline));
      return Wait::kAgain;
    case SSL_ERROR_ZERO_RETURN:
      return Wait::kEnd;
    default:
      return tls_failure(address_, error);
  }
}

Status ClientConnection::greet(const TlsClient& tls, Deadline deadline) {
  ssl_.reset(::SSL_new(tls.get()));
  if (!ssl_ || ::SSL_set_fd(ssl_.get(), socket_.get()) != 1)
    return Status::error(Code::kUnavailable, "OpenSSL has no memory");
  const char* host = address_.host.c_str();
  if (is_address(address_.host)) {
    ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl_.get()), host);
  } else {
    ::SSL_set1_host(ssl_.get(), host);
    ::SSL_set_tlsext_host_name(ssl_.get(), host);
  }
  deadline = sooner(deadline, Deadline::after_ms(kConnectMs));
  for (int result = 0; (result = ::SSL_connect(ssl_.get())) != 1;) {
    const long verified = ::SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK)
      return no_server(address_, cat("its certificate is not trusted: ",
                                     ::X509_verify_cert_error_string(verified),
                                     "; --ssl-ca-certs names whose certificates are"));
    SHOAL_ASSIGN_OR_RETURN(const Wait wait, after_tls(result, deadline));
    if (wait == Wait::kEnd) return no_server(address_, "it ended the connection");
  }
  return {};
}

Status ClientConnection::send_all(std::string_view text, Deadline deadline) {
  while (!text.empty()) {
    if (ssl_) {
      const int n = ::SSL_write(ssl_.get(), text.data(),
                                static_cast<int>(std::min<size_t>(text.size(), 16 << 10)));
      if (n > 0) {
        text.remove_prefix(static_cast<size_t>(n));
        continue;
      }
      const Result<Wait> wait = after_tls(n, deadline);
      if (wait.status().code() == Code::kCancelled || deadline.passed()) return wait.status();
      if (!wait.ok() || *wait == Wait::kEnd) return {};
      continue;
    }
    const ssize_t n = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      SHOAL_RETURN_IF_ERROR(wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return {};
    }
  }
  return {};
}

Result<size_t> ClientConnection::receive(char* bytes, size_t size, Deadline deadline) {
  for (;;) {
    if (ssl_) {
      const int n = ::SSL_read(ssl_.get(), bytes, static_cast<int>(size));
      if (n > 0) return static_cast<size_t>(n);
      SHOAL_ASSIGN_OR_RETURN(const Wait wait, after_tls(n, deadline));
      if (wait == Wait::kEnd) return size_t{0};
      continue;
    }
    SHOAL_RETURN_IF_ERROR(wait(POLLIN, deadline));
    const ssize_t n = ::recv(socket_.get(), bytes, size, 0);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EAGAIN && errno != EINTR) return no_server(address_, std::strerror(errno), errno);
  }
}

}  // namespace shoal
