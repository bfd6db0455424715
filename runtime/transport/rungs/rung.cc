#include "runtime/transport/rungs/rung.h"

#include <algorithm>

#include "runtime/transport/rungs/rungs.h"

namespace shoal {
namespace {

/// The fastest come first, and of two that are equally fast the simpler one. Copied at the first
/// call, because the rungs are defined in other files, which may be initialized later.
const std::vector<Rung>& all_rungs(DeviceKind device) {
  static const std::vector<Rung> cpu{kShmRung, kShmLeanRung, kMemfdRung, kCmaRung, kTcpRung};
  static const std::vector<Rung> cuda{kNcclP2pRung,     kCudaIpcRung,   kNcclShmRung,
                                      kNcclShmLeanRung, kHostMemfdRung, kNcclSocketRung,
                                      kTcpRung};
  return device == DeviceKind::kCuda ? cuda : cpu;
}

const Rung* find_in(const std::vector<Rung>& rungs, std::string_view name) {
  const auto it =
      std::find_if(rungs.begin(), rungs.end(), [&](const Rung& r) { return r.name == name; });
  return it == rungs.end() ? nullptr : &*it;
}

/// Explains why a transport name is not accepted.
Status unknown_transport(const std::string& name, DeviceKind device) {
  const DeviceKind other = device == DeviceKind::kCpu ? DeviceKind::kCuda : DeviceKind::kCpu;
  const bool others = find_in(all_rungs(other), name) != nullptr;
  return Status::error(
      Code::kInvalidArgument,
      others ? cat("transport \"", name, "\" is for --device ", device_name(other),
                   ", not for --device ", device_name(device), ", which has ", rung_names(device))
             : cat("unknown transport \"", name, "\"; known for --device ", device_name(device),
                   ", in the default order: ", rung_names(device)));
}

}  // namespace

std::span<const Rung> rungs(DeviceKind device) {
  return all_rungs(device);
}

std::string rung_names(DeviceKind device) {
  std::string names;
  for (const Rung& rung : all_rungs(device))
    names += (names.empty() ? "" : ",") + std::string(rung.name);
  return names;
}

const Rung* find_rung(std::string_view name) {
  const Rung* rung = find_in(all_rungs(DeviceKind::kCpu), name);
  return rung != nullptr ? rung : find_in(all_rungs(DeviceKind::kCuda), name);
}

Result<std::vector<std::string>> parse_transport_order(std::string_view text, DeviceKind device) {
  std::vector<std::string> order;
  for (;;) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string name(text.substr(0, comma));
    if (find_in(all_rungs(device), name) == nullptr) return unknown_transport(name, device);
    if (std::find(order.begin(), order.end(), name) != order.end()) {
      return Status::error(Code::kInvalidArgument, cat("transport \"", name, "\" is named twice"));
    }
    order.push_back(name);
    if (comma == text.size()) return order;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace shoal
