#include "runtime/transport/rung.h"

#include <algorithm>
#include <cerrno>
#include <sys/random.h>

#include "runtime/comm/shm_communicator.h"
#include "runtime/comm/tcp_communicator.h"
#include "runtime/comm/tcp_mesh.h"

namespace shoal {
namespace {

Result<TransportSetup> prepare_shm(int world_size, const HostFacts&) {
  TransportSetup setup;
  setup.rung = "shm";
  SHOAL_ASSIGN_OR_RETURN(setup.shm, ShmSegment::create(shm_communicator_bytes(world_size, kShmSlotBytes)));
  return setup;
}

Result<std::unique_ptr<Communicator>> open_shm(OpenArgs args) {
  return open_shm_communicator(args.world, args.shm.get(), static_cast<size_t>(args.shm_bytes), args.timeout_ms);
}

Result<TransportSetup> prepare_tcp(int world_size, const HostFacts&) {
  TransportSetup setup;
  setup.rung = "tcp";
  SHOAL_ASSIGN_OR_RETURN(TcpListeners listeners, make_tcp_listeners(world_size));
  setup.listeners = std::move(listeners.listeners);
  setup.tcp_ports.assign(listeners.ports.begin(), listeners.ports.end());
  if (::getrandom(&setup.group_key, sizeof setup.group_key, 0) != sizeof setup.group_key) {
    return Status::error(Code::kUnavailable, "getrandom for the group's key", errno);
  }
  return setup;
}

Result<std::unique_ptr<Communicator>> open_tcp(OpenArgs args) {
  return open_tcp_communicator(args.world, std::move(args.listener),
                               std::vector<int>(args.tcp_ports.begin(), args.tcp_ports.end()), args.timeout_ms,
                               args.group_key);
}

ShmNeed need_shm(int world_size) {
  return {"shm", {{"slots", static_cast<int64_t>(shm_communicator_bytes(world_size, kShmSlotBytes)), 1}}, {}};
}

ShmNeed need_tcp(int) {
  return {"tcp", {}, {}};
}

Status probe_nothing(const HostFacts&) {
  return {};
}

constexpr Rung kRungs[] = {
    {"shm", need_shm, probe_nothing, prepare_shm, open_shm},
    {"tcp", need_tcp, probe_nothing, prepare_tcp, open_tcp},
};

}  // namespace

std::span<const Rung> rungs() {
  return kRungs;
}

std::string rung_names() {
  std::string names;
  for (const Rung& rung : kRungs) names += (names.empty() ? "" : ",") + std::string(rung.name);
  return names;
}

const Rung* find_rung(std::string_view name) {
  const auto it = std::find_if(std::begin(kRungs), std::end(kRungs), [&](const Rung& r) { return r.name == name; });
  return it == std::end(kRungs) ? nullptr : it;
}

Result<std::vector<std::string>> parse_transport_order(std::string_view text) {
  std::vector<std::string> order;
  for (;;) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string name(text.substr(0, comma));
    if (find_rung(name) == nullptr) {
      return Status::error(Code::kInvalidArgument,
                           cat("unknown transport \"", name, "\"; known, in the default order: ", rung_names()));
    }
    if (std::find(order.begin(), order.end(), name) != order.end()) {
      return Status::error(Code::kInvalidArgument, cat("transport \"", name, "\" is named twice"));
    }
    order.push_back(name);
    if (comma == text.size()) return order;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace shoal
