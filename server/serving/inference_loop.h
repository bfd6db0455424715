#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/scheduler.h"
#include "server/serving/generation_request.h"

namespace shoal {

/// What one step gave one request. Text is a delta, whole characters only; stop strings are held
/// back and cut.
struct OutputDelta {
  std::vector<SampledToken> tokens;
  std::string text;
};

struct OutputEnd {
  Status status;  ///< not ok: the request failed (workers lost, shut down); tokens so far stand
  FinishReason reason = FinishReason::kCancelled;
  std::string stop_text;       ///< the stop string that matched, if one did
  int32_t stop_token_id = -1;  ///< the id that ended it, if one did
  bool stopped_by_eos = false;
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
};

/// Where a request's output goes. Called from the loop's thread, never concurrently for one
/// request, without any lock of the loop; must not block. on_delta comes for every step that gave
/// the request a token, on_end exactly once, last. May call submit and cancel, not drain or the
/// destructor.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_delta(OutputDelta delta) = 0;
  virtual void on_end(OutputEnd end) = 0;
};

/// What became of a plan. No result: the workers were lost and run again; nothing that they held is
/// left, and every request goes on from the tokens it has.
struct StepOutcome {
  StepOutcome(StepResult answer) : result(std::move(answer)) {}  // NOLINT: implicit by design
  StepOutcome(Status why, bool in_this_step) : lost(std::move(why)), during_step(in_this_step) {}

  std::optional<StepResult> result;
  Status lost;  ///< why there is no result
  bool during_step =
      false;  ///< they were lost in this very step: its requests were present at a crash
};

/// One step on the workers; an error means that they are lost for good (then the loop stops: every
/// request gets the status).
using StepFunction = std::function<Result<StepOutcome>(const StepPlan&)>;

/// Drives the scheduler: a thread that plans, steps, detokenizes and hands out, as long as there is
/// work. submit, cancel, load, status and drain may be called from any thread.
class InferenceLoop {
 public:
  /// model and what step refers to must outlive the loop.
  InferenceLoop(const ServedModel& model, const SchedulerLimits& limits, StepFunction step);
  ~InferenceLoop();  ///< stops after the step under way: open requests end with CANCELLED

  /// Queues a request; its id. The sink may be called before submit returns. RESOURCE_EXHAUSTED:
  /// queue full; UNAVAILABLE: draining or failed; INVALID_ARGUMENT: longer than the whole KV cache.
  /// On an error the sink is never called.
  Result<uint64_t> submit(ResolvedRequest request, std::shared_ptr<OutputSink> sink);

  /// The request ends with reason kCancelled at the next step boundary and its blocks are free.
  /// Unknown ids: no effect.
  void cancel(uint64_t id);

  EngineLoad load() const;

  /// No new requests; waits until the open ones have ended or the deadline passes (then they end
  /// with CANCELLED after the step under way, which `late` may shorten). True: all ended by
  /// themselves.
  bool drain(Deadline deadline, const std::function<void()>& late = {});

  /// The step function's failure once it has failed, else ok.
  Status status() const;

 private:
  struct Open;
  struct Delivery;
  void run();
  Status step(const StepPlan& plan);
  void resume(const StepPlan& plan, const StepOutcome& outcome);
  void fail(const Status& why);
  static void end(std::vector<std::unique_ptr<Open>> ended);
  void deliver(const StepResult& result);
  std::vector<std::unique_ptr<Open>> take_cancelled();
  std::vector<std::unique_ptr<Open>> take_all(const Status& status);
  bool idle() const { return open_.empty() && !busy_; }

  const ServedModel& model_;
  const StepFunction step_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the loop has something to do
  std::condition_variable idle_;  // idle() may have become true
  Scheduler scheduler_;
  std::map<uint64_t, std::unique_ptr<Open>>
      open_;  // what an Open holds, the loop's thread alone touches
  std::vector<uint64_t> cancelled_;
  Status failure_;
  uint64_t next_id_ = 1;
  bool draining_ = false;
  bool end_all_ = false;
  bool stop_ = false;
  bool busy_ = false;   // the loop is in a step, or handing out
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace shoal
