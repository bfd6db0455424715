#include "runtime/transport/rungs/rung.h"

#include <algorithm>

#include "runtime/transport/rungs/rungs.h"

namespace shoal {
namespace {

/// Medians of one rung differ by up to this from run to run of the bench.
constexpr double kSameTime = 1.15;

/// By what bench/collectives.py says, the ones that cost least come first (RungCost), and of two
/// that cost the same the simpler one. Copied at the first
/// call, because the rungs are defined in other files, which may be initialized later.
const std::vector<Rung>& all_rungs(DeviceKind device) {
  static const std::vector<Rung> cpu{kShmRung, kMemfdRung, kShmLeanRung, kCmaRung, kTcpRung};
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

RungCost cost_beside(const Rung& rung, const Rung& first) {
  if (!rung.cost.measured() || !first.cost.measured()) return {};
  return {rung.cost.small / first.cost.small, rung.cost.large / first.cost.large};
}

bool as_good(const RungCost& cost) {
  return cost.measured() && cost.small <= kSameTime && cost.large <= kSameTime;
}

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
