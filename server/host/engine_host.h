#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "models/tokenizer.h"
#include "runtime/supervisor/supervisor.h"
#include "server/cli/exit_code.h"
#include "server/host/engine_plan.h"
#include "server/host/transport_setup.h"
#include "server/metrics/metrics.h"
#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"

namespace shoal {

/// How loading is shown on stderr. A terminal gets one line that changes; anything else gets log
/// lines (kLogged, for serve) or nothing.
enum class ProgressStyle { kTerminalOnly, kLogged };

/// Convert the flags. max_num_seqs: how many requests run at once.
Scheduling scheduling_of(const SchedulingFlags& flags);
QueueLimits queue_limits_of(const QueueFlags& flags, int32_t max_num_seqs);

/// The ranks of one model, as commands use them: a Supervisor that is configured from the flags and
/// whose events are logged. All but start() may be called from any thread.
class EngineHost {
 public:
  /// Walks the ladder until a transport works. The reasons for refused rungs are logged as
  /// warnings, or are part of the error if no rung is left. `facts` are the result of facts_for().
  /// on_loading is told how much of the model is loaded, in percent, from a thread of the start,
  /// and nothing of restarts. If the ranks' devices have room for a smaller KV cache than was
  /// planned, it lowers the plan's limits and logs a warning.
  static Attempt<std::unique_ptr<EngineHost>> start(
      EnginePlan& plan, const EngineFlags& flags, HostFacts facts,
      ProgressStyle progress = ProgressStyle::kTerminalOnly,
      std::function<void(int)> on_loading = [](int) {});

  /// Starts the same ranks over the same transports up to where they would load: they prove their
  /// transport, and end. Says in `report` how that went, also if it fails.
  static std::optional<Failure> rehearse(const EnginePlan& plan, const EngineFlags& flags,
                                         HostFacts facts, TransportReport* report);

  /// Runs one step on every rank. If the ranks were lost and are started again, the outcome has no
  /// result, because their KV cache is gone. An error means that they are lost for good, or
  /// (DATA_LOSS) that a file of the model was changed in place.
  Result<StepOutcome> step(const StepPlan& plan);

  /// Calls Supervisor::watch. An error means the same as one of step().
  Status watch();
  double restarting_s() const { return supervisor_->restarting_s(); }
  Status why_restarting() const { return supervisor_->why_restarting(); }

  /// Looks at the files of the model for a short time: ModelWatch::look().
  Status look_at_model() { return model_->look(Deadline::after_ms(0)); }

  /// How a command ends that ran on these ranks, with the status that it has come to. A rank that
  /// could not be started again for a reason of its own, such as a model that is damaged by now,
  /// gives the exit code of a start.
  Ending ending(const Status& status) const;

  void give_up() { supervisor_->give_up(); }  ///< Supervisor::give_up

  TransportReport report() const { return supervisor_->report(); }
  /// Call it at the end. It logs which rank made the others wait in the steps, if there was one.
  void log_summary() const;
  /// What metrics show of the ranks.
  RanksState ranks_state() const;
  std::string transport() const { return report().rung; }
  const std::string& kernels() const { return kernels_; }
  /// The fingerprint of the ranks' arithmetic (runtime/worker/arithmetic.h), which all share.
  const std::string& arithmetic() const { return arithmetic_; }
  /// The devices of the group, "0:GPU-8f0c...:NVIDIA H100 80GB HBM3,1:...", each with CUDA's number
  /// at the start, its UUID and its name. Empty: the ranks compute on the CPU.
  const std::string& gpus() const { return gpus_; }
  /// The packed weights of all ranks, as they reported it after loading.
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  EngineHost(std::unique_ptr<ModelWatch> model, std::unique_ptr<Supervisor> supervisor)
      : model_(std::move(model)), supervisor_(std::move(supervisor)) {}
  Status read_ready(EnginePlan& plan, Deadline deadline);

  const std::unique_ptr<ModelWatch> model_;  // outlives the ranks, which load from its files
  const std::unique_ptr<Supervisor> supervisor_;
  std::string kernels_;
  std::string arithmetic_;
  std::string gpus_;
  int64_t weight_bytes_ = 0;
};

/// Collects what requests are checked against.
ServedModel make_served_model(const ModelFiles& files, Tokenizer tokenizer, const EnginePlan& plan,
                              std::optional<uint64_t> seed);

}  // namespace shoal
