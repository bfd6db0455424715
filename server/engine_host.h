#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "runtime/supervisor/worker_group.h"
#include "server/engine_plan.h"
#include "server/generation_request.h"

namespace shoal {

/// How loading is shown on stderr: one line that changes on a terminal; elsewhere log lines (serve) or nothing.
enum class ProgressStyle { kTerminalOnly, kLogged };

/// The ranks of one model, running. start() and the destructor belong to one thread that lives on in between (the
/// workers die with it); step() and watch() may be called from any.
class EngineHost {
 public:
  /// Tries the transports in order until one works; what one was refused for is logged as a warning, or ends in the
  /// error when none is left (UNAVAILABLE). Errors that another transport would not cure end it at once
  /// (Stage::kStart).
  static Result<std::unique_ptr<EngineHost>> start(const EnginePlan& plan, const std::vector<std::string>& transports,
                                                   ProgressStyle progress);

  /// One step on every rank; WorkerGroup::step.
  Result<StepResult> step(const StepPlan& plan);

  /// A worker's death while nothing runs; returns at once. ok while a step runs: the step will tell.
  Status watch();

  std::string transport() const { return group_->ready().front().transport; }
  std::string kernels() const { return group_->ready().front().kernels; }
  int64_t weight_bytes() const;  ///< of all ranks, as loaded

 private:
  explicit EngineHost(std::unique_ptr<WorkerGroup> group) : group_(std::move(group)) {}
  std::mutex mutex_;
  std::unique_ptr<WorkerGroup> group_;
};

/// What requests are checked against.
ServedModel make_served_model(const ModelFiles& files, Tokenizer tokenizer, const EnginePlan& plan, uint64_t seed);

}  // namespace shoal
