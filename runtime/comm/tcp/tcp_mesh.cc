#include "runtime/comm/tcp/tcp_mesh.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <list>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

// The kernel grants at most net.core.[rw]mem_max. Small buffers stall messages of 1 MiB.
constexpr int kSocketBufferBytes = 4 << 20;
constexpr int kBacklog = 128;        // room for every rank and a few unrelated connections
constexpr size_t kMaxUnproven = 64;  // connections that have not yet shown the key
constexpr uint64_t kMagic = 0x02'31'6c'61'6f'68'73;  // "shoal1" and a version

/// The first bytes that are sent in both directions. All ranks run the same program on the same
/// machine, so the memory layout is the format.
struct Hello {
  uint64_t magic = kMagic;
  uint64_t group_key = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  CpuMask cpus{};
};

/// An accepted connection, and the part of its Hello that has arrived.
struct Unproven {
  Fd fd;
  Hello hello;
  size_t received = 0;
};

Status socket_error(int error, const std::string& what) {
  const bool exhausted = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  return Status::error(exhausted ? Code::kResourceExhausted : Code::kUnavailable, what, error);
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof(value));
}

/// Must be called before connect or listen, because these fix the window scale. Failures are
/// ignored: each option only affects speed.
void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, kSocketBufferBytes);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, kSocketBufferBytes);
  // If bbr is the default, it paces the loopback interface: 2.3 times the time at 1 MiB.
  for (const char* control : {"reno", "cubic"}) {
    if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, std::strlen(control)) == 0) break;
  }
}

Result<Fd> make_listener(int& port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = errno;
  if (!fd.valid()) return socket_error(error, "open a TCP socket");
  tune(fd.get());
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof(address);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    error = errno;
    return Status::error(error == EADDRINUSE ? Code::kResourceExhausted : Code::kUnavailable,
                         "listen on a free port of 127.0.0.1", error);
  }
  port = ntohs(address.sin_port);
  return fd;
}

/// How long a handshake may take, and what may end it earlier.
struct Patience {
  Deadline deadline;
  const Interrupted& interrupted;
};

/// Waits for any of the entries, at most for kSliceMs. OK means that the caller should look at
/// them. `what` is the text of the error at the deadline.
Status wait_slice(std::vector<pollfd>& entries, const Patience& patience, const std::string& what) {
  if (::poll(entries.data(), entries.size(), patience.deadline.remaining_ms(kSliceMs)) > 0)
    return {};
  if (patience.deadline.passed()) return Status::error(Code::kDeadlineExceeded, what);
  return patience.interrupted ? patience.interrupted() : Status();
}

/// Waits until fd is ready for `events`.
Status wait_ready(int fd, short events, const Patience& patience, const std::string& what) {
  std::vector<pollfd> entry{{fd, events, 0}};
  do {
    SHOAL_RETURN_IF_ERROR(wait_slice(entry, patience, what));
  } while (entry[0].revents == 0);
  return {};
}

/// A Hello always fits into a fresh socket's buffer. So if one call does not send all of it, the
/// connection is broken.
bool send_hello(int fd, const Hello& hello) {
  return ::send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(hello));
}

enum class Progress { kMore, kComplete, kBroken };

/// Receives the part of a Hello that has arrived.
Progress receive_hello(int fd, Hello& hello, size_t& received) {
  const ssize_t got = ::recv(fd, reinterpret_cast<char*>(&hello) + received,
                             sizeof(hello) - received, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Progress::kMore : Progress::kBroken;
  received += static_cast<size_t>(got);
  if (got == 0) return Progress::kBroken;
  return received == sizeof(hello) ? Progress::kComplete : Progress::kMore;
}

bool same_group(const Hello& theirs, const Hello& ours) {
  return theirs.magic == kMagic && theirs.group_key == ours.group_key &&
         theirs.world_size == ours.world_size;
}

Result<Fd> connect_to(int rank, int port, const Patience& patience) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = errno;
  if (!fd.valid()) return socket_error(error, "open a TCP socket");
  tune(fd.get());
  const sockaddr_in address = loopback(port);
  const std::string what = cat("connect to rank ", rank, " at 127.0.0.1:", port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return fd;
  error = errno;
  if (error == EINPROGRESS) {
    SHOAL_RETURN_IF_ERROR(wait_ready(fd.get(), POLLOUT, patience, what));
    socklen_t length = sizeof(error);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error == 0) return fd;
  }
  return socket_error(error, what);
}

/// Connects to a lower rank and exchanges hellos with it.
Status join(int rank, int port, const Hello& ours, const Patience& patience, TcpMesh& mesh) {
  SHOAL_ASSIGN_OR_RETURN(Fd fd, connect_to(rank, port, patience));
  Hello theirs;
  size_t received = 0;
  Progress progress = send_hello(fd.get(), ours) ? Progress::kMore : Progress::kBroken;
  while (progress == Progress::kMore) {
    SHOAL_RETURN_IF_ERROR(
        wait_ready(fd.get(), POLLIN, patience,
                   cat("tcp handshake: no answer from rank ", rank, " at 127.0.0.1:", port)));
    progress = receive_hello(fd.get(), theirs, received);
  }
  if (progress == Progress::kBroken || !same_group(theirs, ours) || theirs.rank != rank) {
    return Status::error(
        Code::kUnavailable,
        cat("tcp handshake: rank ", rank, " at 127.0.0.1:", port,
            progress == Progress::kBroken ? " closed" : " answered as another group"));
  }
  mesh.peers[rank] = std::move(fd);
  mesh.cpus[rank] = theirs.cpus;
  return {};
}

/// Makes a connection whose Hello is complete a peer if it belongs to the group. Otherwise the
/// caller closes it.
void admit(Unproven& connection, const Hello& ours, TcpMesh& mesh) {
  const Hello& theirs = connection.hello;
  if (!same_group(theirs, ours) || theirs.rank <= ours.rank || theirs.rank >= ours.world_size)
    return;
  if (mesh.peers[theirs.rank].valid() || !send_hello(connection.fd.get(), ours)) return;
  mesh.peers[theirs.rank] = std::move(connection.fd);
  mesh.cpus[theirs.rank] = theirs.cpus;
}

std::string missing_peers(const TcpMesh& mesh, int first) {
  std::string text;
  for (size_t rank = static_cast<size_t>(first); rank < mesh.peers.size(); ++rank) {
    if (!mesh.peers[rank].valid()) text += cat(text.empty() ? "rank " : ", rank ", rank);
  }
  return text;
}

/// Accepts connections until every higher rank has come. Connections that have not sent a whole
/// Hello are kept in a list. When the list is full, the oldest one is dropped.
Status accept_peers(int listener, const Hello& ours, const Patience& patience, TcpMesh& mesh) {
  std::list<Unproven> unproven;
  for (std::string missing; !(missing = missing_peers(mesh, ours.rank + 1)).empty();) {
    std::vector<pollfd> entries{{listener, POLLIN, 0}};
    for (const Unproven& connection : unproven) entries.push_back({connection.fd.get(), POLLIN, 0});
    const std::string what = cat("tcp handshake: nothing from ", missing);
    SHOAL_RETURN_IF_ERROR(wait_slice(entries, patience, what));
    // Unrelated connections may keep wait_slice busy, so that it never sees the deadline.
    if (patience.deadline.passed()) return Status::error(Code::kDeadlineExceeded, what);
    for (auto it = unproven.begin(); it != unproven.end();) {
      const Progress progress = receive_hello(it->fd.get(), it->hello, it->received);
      if (progress == Progress::kComplete) admit(*it, ours, mesh);
      it = progress == Progress::kMore ? std::next(it) : unproven.erase(it);
    }
    Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const int error = errno;
    if (fd.valid()) {
      tune(fd.get());
      if (unproven.size() == kMaxUnproven) unproven.pop_front();
      unproven.push_back({std::move(fd), {}, 0});
    } else if (error != EAGAIN && error != ECONNABORTED && error != EPROTO && error != EINTR) {
      // Retrying would fail again at once, without end: no descriptor or memory, or a filter.
      return socket_error(error, "accept a peer's TCP connection");
    }
  }
  return {};
}

}  // namespace

Result<TcpListeners> make_tcp_listeners(int world_size) {
  TcpListeners made;
  for (int rank = 0; rank < world_size; ++rank) {
    int port = 0;
    SHOAL_ASSIGN_OR_RETURN(Fd fd, make_listener(port));
    made.listeners.push_back(std::move(fd));
    made.ports.push_back(port);
  }
  return made;
}

Result<TcpMesh> connect_tcp_mesh(World world, Fd listener, const std::vector<int>& ports,
                                 uint64_t group_key, Deadline deadline,
                                 const Interrupted& interrupted) {
  if (world.rank < 0 || world.rank >= world.size ||
      ports.size() != static_cast<size_t>(world.size) || !listener.valid()) {
    return Status::error(Code::kInvalidArgument,
                         cat("tcp communicator: rank ", world.rank, " of ", world.size, " with ",
                             ports.size(), " ports and listener ", listener.get()));
  }
  TcpMesh mesh;
  mesh.peers.resize(ports.size());
  mesh.cpus.resize(ports.size());
  mesh.cpus[world.rank] = calling_thread_cpus();
  const Patience patience{deadline, interrupted};
  const Hello ours{kMagic, group_key, world.rank, world.size, mesh.cpus[world.rank]};
  // Connects to the lower ranks first. Rank 0 only accepts, so the ranks cannot wait for each other
  // in a circle.
  for (int rank = 0; rank < world.rank; ++rank) {
    SHOAL_RETURN_IF_ERROR(join(rank, ports[rank], ours, patience, mesh));
  }
  // Another program may have passed the listener on through exec, so make sure that accept cannot
  // block.
  const int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags >= 0) ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK);
  SHOAL_RETURN_IF_ERROR(accept_peers(listener.get(), ours, patience, mesh));
  return mesh;
}

}  // namespace shoal
