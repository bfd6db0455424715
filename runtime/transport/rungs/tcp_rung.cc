#include <cerrno>
#include <sys/random.h>

#include "runtime/comm/tcp/tcp_communicator.h"
#include "runtime/comm/tcp/tcp_mesh.h"
#include "runtime/transport/rungs/rungs.h"

namespace shoal {
namespace {

/// Connections over the loopback interface. It needs neither shared memory nor the right to read
/// other processes' memory.
struct TcpRung {
  static constexpr char kName[] = "tcp";

  /// The number of open files of the front, which has more of them than any rank. For each rank it
  /// has a listener, the control channel and the pidfd. While the last rank is being started it
  /// also has the other end of that channel and copies of the descriptors that the rank inherits.
  /// The log takes one more for a pipe or terminal (PatientWriter), and the program's file one.
  static int64_t front_descriptors(int world_size) {
    constexpr int64_t kStandard = 3, kLog = 1, kProgram = 1, kForEachRank = 3, kWhileOneIsBorn = 3;
    return kStandard + kLog + kProgram + kForEachRank * world_size + kWhileOneIsBorn;
  }

  static ShmNeed need(const RungContext& context) {
    return {kName, {}, {}, front_descriptors(context.world_size)};
  }

  static Status probe(const RungContext& context) {
    if (context.facts.loopback_error == 0) return {};
    return Status::error(Code::kUnavailable, "no connection can be made over 127.0.0.1",
                         context.facts.loopback_error);
  }

  static Result<TransportSetup> prepare(const RungContext& context) {
    TransportSetup setup;
    setup.rung = kName;
    SHOAL_ASSIGN_OR_RETURN(TcpListeners listeners, make_tcp_listeners(context.world_size));
    setup.listeners = std::move(listeners.listeners);
    setup.tcp_ports.assign(listeners.ports.begin(), listeners.ports.end());
    if (::getrandom(&setup.group_key, sizeof setup.group_key, 0) != sizeof setup.group_key) {
      return Status::error(Code::kInternal, "getrandom for the group's key", errno);
    }
    return setup;
  }

  static Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
    return open_tcp_communicator(args.world, std::move(args.listener),
                                 std::vector<int>(args.tcp_ports.begin(), args.tcp_ports.end()),
                                 args.timeout_ms, args.group_key, std::move(args.interrupted));
  }
};

}  // namespace

const Rung kTcpRung = rung_of<TcpRung>(DeviceKind::kCpu, {6.0, 2.1});

}  // namespace shoal
