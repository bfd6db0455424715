#pragma once
#include <cstdint>
#include <optional>
#include <sys/types.h>

#include "runtime/base/fd.h"

namespace shoal {

// A socket that gRPC owns and closes at any time. It is known by its descriptor and its inode,
// because the number may mean another file by now.

/// The inode of the socket that this descriptor means now; 0 if it means no socket.
ino_t inode_of(int descriptor);

/// True if the client has sent something lately. A client that has never sent a byte has not.
bool is_sending(int socket);

struct SocketBytes {
  uint64_t received = 0;
  uint64_t sent = 0;  ///< and acknowledged
};
/// nullopt if gRPC has closed it.
std::optional<SocketBytes> bytes_of(int descriptor, ino_t inode);

/// A descriptor of our own for it; none if gRPC has closed it.
Fd copy_of(int descriptor, ino_t inode);

}  // namespace shoal
