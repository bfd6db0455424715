#include <cerrno>
#include <sys/random.h>

#include "runtime/comm/tcp_communicator.h"
#include "runtime/comm/tcp_mesh.h"
#include "runtime/transport/rungs.h"

namespace shoal {
namespace {

constexpr char kName[] = "tcp";

ShmNeed need(const RungContext&) {
  return {kName, {}, {}};
}

Status probe(const RungContext&) {
  return {};  // the loopback interface is tried in prepare, and nothing else can forbid it
}

Result<TransportSetup> prepare(const RungContext& context) {
  TransportSetup setup;
  setup.rung = kName;
  SHOAL_ASSIGN_OR_RETURN(TcpListeners listeners, make_tcp_listeners(context.world_size));
  setup.listeners = std::move(listeners.listeners);
  setup.tcp_ports.assign(listeners.ports.begin(), listeners.ports.end());
  if (::getrandom(&setup.group_key, sizeof setup.group_key, 0) != sizeof setup.group_key) {
    return Status::error(Code::kUnavailable, "getrandom for the group's key", errno);
  }
  return setup;
}

Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
  return open_tcp_communicator(args.world, std::move(args.listener),
                               std::vector<int>(args.tcp_ports.begin(), args.tcp_ports.end()), args.timeout_ms,
                               args.group_key, std::move(args.interrupted));
}

}  // namespace

/// Loopback connections: no shared memory, no reading of others' memory.
const Rung kTcpRung{kName, need, probe, prepare, open};

}  // namespace shoal
