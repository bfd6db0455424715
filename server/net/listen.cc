#include "server/net/listen.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <linux/tcp.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace shoal {

namespace {

/// How long data may stay unacknowledged before the kernel gives a connection up. To the kernel a
/// client that does not read is the same as one that has gone. Therefore this is longer than the
/// servers' own limits for clients that do not read, which otherwise would never be reached: the
/// connection would end earlier than documented, and the log would not say why. gRPC sets 20 s on
/// the sockets that it accepts, whose clients always read what HTTP/2 allows.
constexpr int kUnacknowledgedMs = 45'000;

/// How much may wait in the kernel before it has been sent. Otherwise the kernel takes up to 4 MiB
/// for a client that does not read, and the server's own limit, which counts from the first write
/// that has to wait, begins only when those are full. At the speed of a stream of tokens that is
/// after kUnacknowledgedMs. What has been sent and waits for its acknowledgement does not count,
/// so that a distant client's speed is not limited.
constexpr int kUnsentBytes = 128 << 10;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  sockaddr* any() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* any() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr_in* v4() { return reinterpret_cast<sockaddr_in*>(&storage); }
  sockaddr_in6* v6() { return reinterpret_cast<sockaddr_in6*>(&storage); }
  void set_port(int port) {
    (any()->sa_family == AF_INET6 ? v6()->sin6_port : v4()->sin_port) =
        htons(static_cast<uint16_t>(port));
  }
  bool operator==(const Address& other) const {
    return size == other.size && std::memcmp(&storage, &other.storage, size) == 0;
  }
};

bool is_wildcard(Address address) {
  return address.any()->sa_family == AF_INET6
             ? std::memcmp(&address.v6()->sin6_addr, &in6addr_any, sizeof in6addr_any) == 0
             : address.v4()->sin_addr.s_addr == htonl(INADDR_ANY);
}

Address wildcard(int family) {
  Address address;
  address.any()->sa_family = static_cast<sa_family_t>(family);
  address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

/// The addresses of a host, without repetitions: /etc/hosts often gives localhost twice. The name
/// of all addresses becomes one that takes both families, as gRPC's own listener does it.
std::vector<Address> distinct(const addrinfo* list) {
  std::vector<Address> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    if (is_wildcard(address)) return {wildcard(AF_INET6), wildcard(AF_INET)};
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end())
      addresses.push_back(address);
  }
  return addresses;
}

Status listen_failure(int error, const std::string& address, const char* flag) {
  const auto failure = [&](Code code, const std::string& what_to_do) {
    return Status::error(code, cat("cannot listen on ", address, ": ", what_to_do), error);
  };
  switch (error) {
    case EAFNOSUPPORT:
      return failure(Code::kInvalidArgument, "choose a --host that this machine has, as 127.0.0.1");
    case EMFILE:
    case ENFILE:
      return failure(Code::kUnavailable, "raise the limit (ulimit -n)");
    case EACCES:
      return failure(Code::kPermissionDenied, cat("choose a ", flag, " above 1023"));
    case EADDRNOTAVAIL:
      return failure(Code::kInvalidArgument, "--host is no address of this machine");
    case EADDRINUSE:
      return failure(Code::kUnavailable,
                     cat("the port is in use; stop the other server, or choose another ", flag,
                         " (0 takes a free one)"));
    default:
      return failure(Code::kUnavailable, "the kernel refuses it");
  }
}

void set(int socket, int level, int option, int value) {
  (void)::setsockopt(socket, level, option, &value, sizeof value);
}

/// A socket that listens on the address; none, with errno set, if there cannot be one. Accepted
/// connections inherit its TCP options.
Fd listen_at(const Address& address) {
  Fd socket(::socket(address.any()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return socket;
  set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // because a port in TIME_WAIT is not busy
  // SO_REUSEPORT stays off, because a second server could otherwise silently share the port.
  set(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
  set(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  if (address.any()->sa_family == AF_INET6)
    set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, is_wildcard(address) ? 0 : 1);
  if (::bind(socket.get(), address.any(), address.size) == 0 &&
      ::listen(socket.get(), SOMAXCONN) == 0)
    return socket;
  const int error = errno;
  socket.reset();
  errno = error;
  return socket;
}

int port_of(const Fd& socket) {
  Address address;
  address.size = sizeof address.storage;
  if (::getsockname(socket.get(), address.any(), &address.size) != 0) return 0;
  return ntohs(address.any()->sa_family == AF_INET6 ? address.v6()->sin6_port
                                                    : address.v4()->sin_port);
}

/// True if the machine lacks this address or its whole family, which does not matter as long as
/// the host has another one.
bool is_missing(int error) {
  return error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
}

/// Listens on the addresses. Returns the errno of the one that fails, or 0.
int listen_at_all(std::vector<Address> addresses, int port, Listeners* listeners) {
  int missing = EAFNOSUPPORT;  // a host without a TCP address
  for (Address& address : addresses) {
    address.set_port(listeners->port != 0 ? listeners->port : port);
    Fd socket = listen_at(address);
    const int error = errno;
    if (socket.valid()) {
      listeners->port = port_of(socket);
      listeners->sockets.push_back(std::move(socket));
      if (is_wildcard(address)) return 0;  // it takes both families, or IPv4 if there is no IPv6
    } else if (!is_missing(error)) {
      return error;
    } else {
      missing = error;
    }
  }
  return listeners->sockets.empty() ? missing : 0;
}

}  // namespace

std::string join_host_port(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? cat(host, ":", port) : cat("[", host, "]:", port);
}

Result<Listeners> listen_on(const std::string& host, int port, const char* flag) {
  const std::string address = join_host_port(host, port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0)
    return Status::error(Code::kInvalidArgument,
                         cat("cannot listen on ", address, ": ", ::gai_strerror(error),
                             "; --host takes an address or name of this machine"));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, &::freeaddrinfo);
  // A port that is free on the first address may be taken on the second. If any port will do,
  // another is tried.
  constexpr int kTries = 16;
  for (int left = port == 0 ? kTries : 1;; --left) {
    Listeners listeners;
    const int error = listen_at_all(distinct(list.get()), port, &listeners);
    if (error == 0) return listeners;
    if (error != EADDRINUSE || left == 1) return listen_failure(error, address, flag);
  }
}

}  // namespace shoal
