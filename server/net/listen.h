#pragma once
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// "127.0.0.1:50051", "[::1]:50051".
std::string join_host_port(const std::string& host, int port);

/// Sockets that listen for TCP connections, one for each address of a host, all on one port. They
/// do not block.
struct Listeners {
  std::vector<Fd> sockets;
  int port = 0;
};

/// Listens on every address of `host`, on `port` or, if it is 0, on a free one. 0.0.0.0 and :: both
/// stand for all addresses of both families. UNAVAILABLE: the port is taken, or descriptors are
/// short; INVALID_ARGUMENT: no such host; PERMISSION_DENIED: a port below 1024 without the
/// privilege for it. The messages name host and port, and `flag` as what to change.
Result<Listeners> listen_on(const std::string& host, int port, const char* flag);

}  // namespace shoal
