#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/spin.h"

namespace shoal {

/// One listening socket per rank on 127.0.0.1. The front makes them: each rank inherits its own and
/// is told all ports, so another program cannot take a port in between.
struct TcpListeners {
  std::vector<Fd> listeners;  ///< close-on-exec; by rank
  std::vector<int> ports;
};

/// RESOURCE_EXHAUSTED: no descriptors or ports are left. UNAVAILABLE: there is no loopback
/// interface.
Result<TcpListeners> make_tcp_listeners(int world_size);

/// A connected socket to every other rank (non-blocking, with TCP_NODELAY), and the CPUs that each
/// rank's thread may use.
struct TcpMesh {
  std::vector<Fd> peers;      ///< by rank; this rank's own is empty
  std::vector<CpuMask> cpus;  ///< by rank
};

/// Connects to the lower ranks and accepts the higher ones. Both sides send group_key. A connection
/// that sends another key is dropped without disturbing the group, and so is one that sends
/// nothing. The key keeps out programs that connect by mistake. It does not keep out an attacker
/// with the rights to read this process. interrupted is called every 100 ms, and its error is
/// returned. UNAVAILABLE: a lower rank is gone or refuses. DEADLINE_EXCEEDED: the message names the
/// ranks that did not come. RESOURCE_EXHAUSTED: no descriptors or socket memory are left.
/// INVALID_ARGUMENT: there is not one port per rank, or the listener is not valid.
Result<TcpMesh> connect_tcp_mesh(World world, Fd listener, const std::vector<int>& ports,
                                 uint64_t group_key, Deadline deadline,
                                 const Interrupted& interrupted = {});

}  // namespace shoal
