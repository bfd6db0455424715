#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "runtime/base/deadline.h"
#include "runtime/supervisor/ladder.h"
#include "runtime/supervisor/living_thread.h"
#include "runtime/supervisor/restart_policy.h"
#include "server/host/engine_plan.h"
#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"

namespace shoal {

/// How loading is shown on stderr: one line that changes on a terminal; elsewhere log lines (serve)
/// or nothing.
enum class ProgressStyle { kTerminalOnly, kLogged };

struct EngineHostOptions {
  HostFacts facts;  ///< facts_for(), gathered before the first thread
  ProgressStyle progress = ProgressStyle::kTerminalOnly;
  int max_restarts = 0;  ///< how often lost ranks are started again; 0: their loss is the end
};

/// What the machine says about transports for so many ranks, and about GPUs where they are to be
/// used. Forks probes: call it before any thread is started.
HostFacts facts_for(const TransportFlags& flags, int world_size);

/// What ranks need to know of the device flags.
void set_device(const DeviceFlags& flags, WorkerInit* init);

/// The ladder's part of the flags; reserved: bytes of weights, KV cache and the like. What the
/// ranks' processes take themselves is added.
LadderOptions ladder_options(const TransportFlags& flags, int world_size, int64_t reserved_bytes);

/// The ranks of one model, running, and started again when they are lost. step(), watch() and
/// report() may be called from any thread.
class EngineHost {
 public:
  /// Walks the ladder until a transport works; what one was refused for is logged as a warning, or
  /// ends in the error when none is left (UNAVAILABLE). Errors that neither another transport nor a
  /// restart would cure end it at once (Stage::kStart).
  static Result<std::unique_ptr<EngineHost>> start(const EnginePlan& plan,
                                                   const TransportFlags& flags,
                                                   EngineHostOptions options);
  ~EngineHost();

  /// One step on every rank. Where the ranks are lost and could be started again, the outcome has
  /// no result: nothing that they held is left. An error: they are lost for good.
  Result<StepOutcome> step(const StepPlan& plan);

  /// Looks for a rank that has died while nothing runs, and starts the group again; returns at once
  /// when all is well or while a step runs: the step will tell. An error: they are lost for good.
  /// `given_up` is looked at every half second of such a start: true ends it, and the ranks are
  /// lost for good.
  Status watch(const std::function<bool()>& given_up);

  /// From now on lost ranks are not started again, and a start under way ends: CANCELLED. Of any
  /// thread.
  void give_up() { given_up_ = true; }

  TransportReport report() const;
  std::string transport() const { return report().rung; }
  std::string kernels() const { return kernels_; }
  int64_t weight_bytes() const { return weight_bytes_; }  ///< of all ranks, as loaded

 private:
  EngineHost(const EnginePlan& plan, const TransportFlags& flags, EngineHostOptions options);
  Status start_group();
  Deadline start_deadline() const { return Deadline::after_s(group_options_.startup_timeout_s); }
  Status try_start(Deadline deadline, GroupFailure* failure);
  Status grant_restart(const GroupFailure& failure, Deadline deadline);
  Status recover(const GroupFailure& failure, Deadline deadline);
  void publish_report();

  const EngineHostOptions options_;
  WorkerGroupOptions group_options_;
  std::mutex mutex_;  // group_, policy_, lost_
  mutable std::mutex report_mutex_;
  TransportReport report_;  // a copy of the ladder's, for others to read while a restart runs
  Ladder ladder_;
  RestartPolicy policy_;
  Clock::time_point origin_ = Clock::now();
  std::string kernels_;
  int64_t weight_bytes_ = 0;
  std::atomic<bool> given_up_ = false;
  bool lost_while_idle_ = false;  // the next plan builds on what is gone
  LivingThread spawner_;
  std::unique_ptr<WorkerGroup> group_;
};

/// What requests are checked against.
ServedModel make_served_model(const ModelFiles& files, Tokenizer tokenizer, const EnginePlan& plan,
                              std::optional<uint64_t> seed);

}  // namespace shoal
