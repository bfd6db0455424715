#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/group_waits.h"
#include "runtime/transport/nccl_report.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/remedy.h"
#include "runtime/transport/rungs/rung.h"
#include "runtime/transport/self_test.h"

namespace shoal {

/// A reason is cut to a length that people read.
inline constexpr size_t kMostReasonBytes = 700;

/// Why a rung was not taken.
struct Refusal {
  std::string rung;
  Phase phase = Phase::kProbe;
  Fault fault = Fault::kTransport;
  Status status;

  /// True if there was too little shared memory, which --on-shm-shortage=fail does not accept.
  bool shared_memory() const { return fault == Fault::kSharedMemory; }
  /// The status with its causes.
  std::string reason() const { return status.to_string(kMostReasonBytes); }
};

/// How good the outcome of a ladder is, in one word.
enum class Verdict {
  kFirst,      ///< the first rung of the order is in use, or there is only one rank
  kAsGood,     ///< a later one, which is as good as the first (as_good)
  kSlower,     ///< a later one, which is slower, or of which nobody knows
  kForbidden,  ///< none is in use, because the policy forbids those that are left
  kNone,       ///< none works
};

/// "first", "as-good", "slower", "forbidden", "none": as in JSON.
const char* verdict_name(Verdict verdict);

/// How the ranks exchange data and why: one object for the log, shoal doctor, the Transport RPC,
/// the health detail and the READY line.
struct TransportReport {
  int world_size = 1;
  std::vector<std::string> order;  ///< the rungs in the order in which they were to be tried
  std::string order_by;            ///< the setting that leaves some out of the order, or empty
  /// One that is not used because of order_by, or of forbidden_by if that is set; empty: none.
  std::string may_work;
  std::string rung;               ///< the one in use; empty: none works
  std::vector<Refusal> refusals;  ///< in the order they happened
  std::vector<ShmNeed> needs;     ///< of every rung in the order
  std::vector<NcclUse> nccl;      ///< of NCCL's rungs in the order
  /// How many bytes of /dev/shm stay free for other programs. nullopt: the start ended before this
  /// number was decided.
  std::optional<int64_t> headroom_bytes;
  SelfTestFigures self_test;  ///< of rank 0; 0 if there was none
  std::string allowed_by;     ///< the setting of the policy that takes a slower rung, or empty
  std::string forbidden_by;   ///< what of the policy ended the start, or empty
  Status failure;             ///< why the start ended if that was no rung's refusal, or ok
  /// What ended a group that was started again, oldest first; the last kMostRestarts of them.
  std::vector<std::string> restarts;
  int64_t restart_count = 0;  ///< of all, because a server may run for years
  std::vector<Remedy> remedies;
  /// Who waits for whom in the running group; nullopt if no group runs or its ranks cannot tell.
  std::optional<GroupWaits> waits;
  HostFacts facts;

  static constexpr size_t kMostRestarts = 20;
  void add_restart(std::string why);

  /// The rung that was to be tried first.
  std::string first() const;
  Verdict verdict() const;
  /// True if ranks are slower than they could be here, or if no rung is in use.
  bool degraded() const { return verdict() >= Verdict::kSlower; }
  /// What the rung in use costs beside the first one of the order; not measured if none is in use.
  RungCost cost() const;
};

/// The layout of to_json: a reader that knows this number knows every field of the document. It
/// grows when a field goes or changes its meaning, not when one is added.
inline constexpr int kTransportReportSchema = 2;

/// {"schema", "verdict", "rung", "tp", "order", "refusals", "needs", "remedies", "facts", ...}:
/// docs/json.md, all fields but "version". What only doctor finds or does is null or empty.
Json to_json(const TransportReport& report);

/// "shm-lean; shm refused (budget): it needs ...": the rung in use, and the root cause of each
/// refusal.
std::string summary(const TransportReport& report);

}  // namespace shoal
