#include "server/grpc/connections/grpc_socket.h"

#include <cstddef>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

namespace shoal {

namespace {

/// A client that has sent something within this time may be in the middle of a request, which gRPC
/// shows only once it has all of it.
constexpr uint32_t kSendingMs = 1'000;

}  // namespace

ino_t inode_of(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

bool is_sending(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  const bool has_bytes = size > offsetof(tcp_info, tcpi_bytes_received);
  return (!has_bytes || info.tcpi_bytes_received > 0) && info.tcpi_last_data_recv < kSendingMs;
}

// The inode is looked at last: if the number still means this socket then, it has meant it all the
// time.
std::optional<SocketBytes> bytes_of(int descriptor, ino_t inode) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size <= offsetof(tcp_info, tcpi_bytes_received) || inode_of(descriptor) != inode)
    return std::nullopt;
  return SocketBytes{info.tcpi_bytes_received, info.tcpi_bytes_acked};
}

// The copy's inode is checked, and a copy stays what it is.
Fd copy_of(int descriptor, ino_t inode) {
  Fd copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (copy.valid() && inode_of(copy.get()) != inode) copy.reset();
  return copy;
}

}  // namespace shoal
