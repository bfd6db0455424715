#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/nccl_report.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/remedy.h"

namespace shoal {

/// Why a rung was not taken.
struct Refusal {
  std::string rung;
  Phase phase = Phase::kProbe;
  Fault fault = Fault::kTransport;
  Status status;

  /// True if there was too little shared memory, which --on-shm-shortage=fail does not accept.
  bool shared_memory() const { return fault == Fault::kSharedMemory; }
};

/// How the ranks exchange data and why: one object for the log, shoal doctor, the Transport RPC,
/// the health detail and the READY line.
struct TransportReport {
  int world_size = 1;
  std::vector<std::string> order;  ///< the rungs in the order in which they were to be tried
  std::string rung;                ///< the one in use; empty: none works
  std::vector<Refusal> refusals;   ///< in the order they happened
  std::vector<ShmNeed> needs;      ///< of every rung in the order
  std::vector<NcclUse> nccl;       ///< of NCCL's rungs in the order
  int64_t headroom_bytes = 0;      ///< of /dev/shm, left free for others
  double latency_us = 0;           ///< of the self-test: all_reduce of 8 KiB
  double bytes_per_s = 0;          ///< of the self-test: all_reduce of 1 MiB
  double verified_s = 0;           ///< from the first rung's first check to the verified transport
  /// What ended a group that was started again, oldest first; the last kMostRestarts of them.
  std::vector<std::string> restarts;
  int64_t restart_count = 0;  ///< of all, because a server may run for years
  std::vector<Remedy> remedies;
  HostFacts facts;

  static constexpr size_t kMostRestarts = 20;
  void add_restart(std::string why);

  /// True if a rung before the one in use was refused.
  bool degraded() const { return !refusals.empty(); }
};

/// {"rung", "tp", "order", "refusals", "needs", "remedies", "facts", ...}: docs/transport.md.
Json to_json(const TransportReport& report);

/// Some lines for people: rung and figures, refusals with numbers, remedies.
std::string to_text(const TransportReport& report);

/// "shm-lean; shm refused (budget): needs ...": the rung in use, and the root cause of each
/// refusal.
std::string summary(const TransportReport& report);

}  // namespace shoal
