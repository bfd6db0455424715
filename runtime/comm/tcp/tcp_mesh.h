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

/// One listening socket per rank on 127.0.0.1, made by the front: a rank inherits its own and is
/// told all ports, so no port can be taken by somebody else in between.
struct TcpListeners {
  std::vector<Fd> listeners;  ///< close-on-exec
  std::vector<int> ports;
};

/// RESOURCE_EXHAUSTED: no descriptors or ports left. UNAVAILABLE: no loopback interface.
Result<TcpListeners> make_tcp_listeners(int world_size);

/// A connected socket to every other rank (non-blocking, no delay), and the CPUs each rank's thread
/// may use.
struct TcpMesh {
  std::vector<Fd> peers;      ///< by rank; this rank's own is empty
  std::vector<CpuMask> cpus;  ///< by rank
};

/// Connects to the lower ranks and accepts the higher ones. Both sides show group_key; a connection
/// that does not is dropped without disturbing the group, as is one that says nothing. The key
/// keeps out what is lost on the machine, not an attacker with rights to read this process.
/// interrupted is asked every 100 ms; its error is returned. UNAVAILABLE: a lower rank is gone or
/// refuses. DEADLINE_EXCEEDED: names the ranks that did not come. INVALID_ARGUMENT: ports are not
/// one per rank.
Result<TcpMesh> connect_tcp_mesh(World world, Fd listener, const std::vector<int>& ports,
                                 uint64_t group_key, Deadline deadline,
                                 const Interrupted& interrupted = {});

}  // namespace shoal
