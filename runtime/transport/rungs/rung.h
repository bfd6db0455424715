#pragma once
#include <cstdint>
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
#include "runtime/comm/exchange.h"
#include "runtime/device/device.h"
#include "runtime/memory/shm_segment.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/rungs/rung_context.h"

namespace shoal {

/// What the front makes for a group before its workers start, which inherit the descriptors.
/// Nothing in it has a name in a file system, so that SIGKILL at any moment leaves nothing behind.
struct TransportSetup {
  std::string rung;
  ShmSegment shm;             ///< one for all ranks; empty if the rung needs none
  std::vector<Fd> listeners;  ///< one per rank, or empty
  std::vector<int32_t> tcp_ports;
  uint64_t group_key = 0;
  /// One list per rank, or empty: NAME=VALUE that replace or extend the front's own environment.
  std::vector<std::vector<std::string>> environment;
  /// Unnamed memory for the NCCL log of each rank, which the front reads; may be empty.
  std::vector<Fd> logs;
};

/// A worker's side of a TransportSetup.
struct OpenArgs {
  World world;
  Fd shm;
  int64_t shm_bytes = 0;
  Fd listener;
  std::vector<int32_t> tcp_ports;
  uint64_t group_key = 0;
  int64_t timeout_ms = 0;          ///< for opening, and for each collective afterwards
  Exchange exchange;               ///< always set
  Interrupted interrupted;         ///< may be empty
  Waiting waits;                   ///< may be empty; the same, for a wait inside a library
  std::shared_ptr<Device> device;  ///< this rank's, already selected; empty if the rung needs none
  std::string nccl_library;        ///< a path, or a name for the loader's search
  /// Sums are in our order on every transport; false: in the library's own order.
  bool reproducible = true;
};

/// How long an all_reduce of a rung takes, as a multiple of the time of one over shm, between two
/// ranks on one host. From bench/collectives.py (docs/benchmarks.md has the figures and the
/// machine), because what is timed during a start differs from start to start. 0: not measured.
struct RungCost {
  double small = 0;  ///< of 8 KiB
  double large = 0;  ///< of 1 MiB
  bool measured() const { return small > 0 && large > 0; }
};

/// One transport of the ladder, that is, one way for ranks to move partial sums. It is data and not
/// a class, because the ladder is an array.
struct Rung {
  const char* name;  ///< also the value of --transport
  /// What it takes. Pure arithmetic.
  ShmNeed (*need)(const RungContext& context);
  /// Runs in the front before anything is made: what facts and settings forbid by themselves,
  /// beyond check_budget.
  Status (*probe)(const RungContext& context);
  /// Runs in the front: reserves what the rung needs. If a library takes it itself, tries whether
  /// it could be taken now. RESOURCE_EXHAUSTED and other errors give the reason if not.
  Result<TransportSetup> (*prepare)(const RungContext& context);
  /// Runs in each worker: connects the group.
  Result<std::unique_ptr<Communicator>> (*open)(OpenArgs args);
  bool on_device = false;  ///< its ranks need a device: OpenArgs::device
  /// The variables that it wants in a rank's environment. They are set before the process starts,
  /// because NCCL reads them once. nullptr: none.
  std::vector<RungSetting> (*environment)(const RungContext& context, int rank) = nullptr;
  RungCost cost = {};
};

/// The times of `rung` as multiples of those of `first`. Not measured if one of the two is not.
RungCost cost_beside(const Rung& rung, const Rung& first);

/// Whether a group that pays this instead of 1 loses nothing: neither time is longer by more than
/// runs of the bench differ. False if it was not measured.
bool as_good(const RungCost& cost);

/// Every rung for ranks on this kind of device, in the default order. tcp is in both lists.
std::span<const Rung> rungs(DeviceKind device = DeviceKind::kCpu);

/// "shm,memfd,shm-lean,cma,tcp": the rungs' names in the default order.
std::string rung_names(DeviceKind device = DeviceKind::kCpu);

/// The rung of this name, for either kind of device. nullptr: there is none.
const Rung* find_rung(std::string_view name);

/// "shm,tcp" -> names in that order. INVALID_ARGUMENT: an unknown name (lists the known ones, or
/// names the --device that the rung is for), an empty list, or a repeated name.
Result<std::vector<std::string>> parse_transport_order(std::string_view text, DeviceKind device);

/// The name that a group of one rank reports, because it has nothing to move.
inline constexpr const char* kNoTransport = "single";

}  // namespace shoal
