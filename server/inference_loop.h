#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/scheduler.h"
#include "server/generation_request.h"

namespace shoal {

/// What one step gave one request. Text is a delta, whole characters only; stop strings are held back and cut.
struct OutputDelta {
  std::vector<SampledToken> tokens;
  std::string text;
};

struct OutputEnd {
  Status status;  ///< not ok: the request failed (workers lost, shut down, deadline); tokens so far stand
  FinishReason reason = FinishReason::kLength;
  std::string stop_text;       ///< the stop string that matched, if one did
  int32_t stop_token_id = -1;  ///< the id that ended it, if one did
  bool stopped_by_eos = false;
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
};

/// Where a request's output goes. Called from the loop's thread, never concurrently for one request; must not block.
/// on_end comes exactly once, last.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_delta(OutputDelta delta) = 0;
  virtual void on_end(OutputEnd end) = 0;
};

/// One step on the workers: the plan's result, or why there is none (then the loop stops: every request gets the
/// status).
using StepFunction = std::function<Result<StepResult>(const StepPlan&)>;

/// Drives the scheduler: a thread that plans, steps, detokenizes and hands out, as long as there is work. submit,
/// cancel, load and drain may be called from any thread.
class InferenceLoop {
 public:
  InferenceLoop(const ServedModel& model, const SchedulerLimits& limits, StepFunction step);
  ~InferenceLoop();  ///< stops at once: open requests end with CANCELLED

  /// Queues a request; its id. RESOURCE_EXHAUSTED: queue full; UNAVAILABLE: draining or failed.
  Result<uint64_t> submit(ResolvedRequest request, std::shared_ptr<OutputSink> sink);

  /// The request ends with reason kCancelled at the next step boundary and its blocks are free. Unknown ids: no effect.
  void cancel(uint64_t id);

  EngineLoad load() const;

  /// No new requests; waits until the open ones have ended or the deadline passes (then they end with CANCELLED). True:
  /// all ended by themselves.
  bool drain(Deadline deadline);

  /// The step function's failure once it has failed, else ok. `on_failure` (may be empty) is called once, from the
  /// loop.
  Status status() const;
  void set_failure_handler(std::function<void(const Status&)> on_failure);

 private:
  struct Open;
  void run();

  const ServedModel& model_;
  StepFunction step_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Scheduler scheduler_;
  std::unordered_map<uint64_t, std::unique_ptr<Open>> open_;
  std::vector<uint64_t> cancelled_;
  std::function<void(const Status&)> on_failure_;
  Status status_;
  uint64_t next_id_ = 1;
  bool draining_ = false;
  bool stop_ = false;
  bool stepping_ = false;
  std::thread thread_;
};

}  // namespace shoal
