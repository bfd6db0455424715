#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/device_kind.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/memory/shm_segment.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/rungs/rung_context.h"

namespace shoal {

/// What the front made for a group before its workers start; they inherit the descriptors. Nothing
/// in it has a name in a file system, so that SIGKILL at any moment leaves nothing behind.
struct TransportSetup {
  std::string rung;
  ShmSegment shm;             ///< one for all ranks; empty where the rung needs none
  std::vector<Fd> listeners;  ///< one per rank, or empty
  std::vector<int32_t> tcp_ports;
  uint64_t group_key = 0;
  /// For each rank, or empty: NAME=VALUE beyond the front's own environment.
  std::vector<std::vector<std::string>> environment;
  std::vector<Fd>
      logs;  ///< one per rank for its NCCL, or empty: unnamed memory that the front reads
};

/// Every rank brings a few bytes and gets those of all, in rank order. Goes through the front: the
/// group has no transport yet. UNAVAILABLE: the front is gone; DEADLINE_EXCEEDED: a rank brings
/// nothing.
using Exchange = std::function<Result<std::vector<std::string>>(std::string mine)>;

/// A worker's side of it.
struct OpenArgs {
  World world;
  Fd shm;
  int64_t shm_bytes = 0;
  Fd listener;
  std::vector<int32_t> tcp_ports;
  uint64_t group_key = 0;
  int64_t timeout_ms = 0;          ///< of opening, and of each collective afterwards
  Exchange exchange;               ///< always there
  Interrupted interrupted;         ///< may be empty
  std::shared_ptr<Device> device;  ///< this rank's, selected; empty where the rung needs none
  std::string nccl_library;        ///< a path, or a name for the loader's search
  bool reproducible = true;  ///< sums in our order on every transport; false: in the library's own
};

/// One step of the ladder: a way for ranks to move partial sums. Data, not a class: the ladder is
/// an array.
struct Rung {
  const char* name;  ///< also the value of --transport
  /// What it takes: pure arithmetic.
  ShmNeed (*need)(const RungContext& context);
  /// In the front, before anything is made: what facts and settings alone forbid, beyond
  /// check_budget.
  Status (*probe)(const RungContext& context);
  /// In the front: reserves what the rung needs, or where a library takes it itself, tries whether
  /// it could be had. RESOURCE_EXHAUSTED and the like say why not.
  Result<TransportSetup> (*prepare)(const RungContext& context);
  /// In each worker: connects the group.
  Result<std::unique_ptr<Communicator>> (*open)(OpenArgs args);
  bool on_device = false;  ///< its ranks need a device: OpenArgs::device
  /// What it wants in a rank's environment before the process starts, since NCCL reads it once;
  /// nullptr: nothing.
  std::vector<RungSetting> (*environment)(const RungContext& context, int rank) = nullptr;
};

/// Every rung for ranks on such devices, in the default order. tcp serves both.
std::span<const Rung> rungs(DeviceKind device = DeviceKind::kCpu);

/// "shm,shm-lean,memfd,cma,tcp": the rungs' names in the default order.
std::string rung_names(DeviceKind device = DeviceKind::kCpu);

/// Of either device. nullptr: no such rung.
const Rung* find_rung(std::string_view name);

/// "shm,tcp" -> names in that order. INVALID_ARGUMENT lists the known ones, or names the --device
/// that the rung is for; an empty list or a repeated name likewise.
Result<std::vector<std::string>> parse_transport_order(std::string_view text, DeviceKind device);

/// The name a group of one rank reports: it has nothing to move.
inline constexpr const char* kNoTransport = "single";

}  // namespace shoal
