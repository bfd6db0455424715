#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/step_pace.h"
#include "server/serving/admission.h"
#include "server/serving/generation_request.h"
#include "server/serving/open_request.h"
#include "server/serving/request_book.h"

namespace shoal {

/// The outcome of a plan. Without a result, the workers were lost and have been started again.
/// Their KV cache is gone, and every request continues from the tokens that it has.
struct StepOutcome {
  StepOutcome(StepResult answer) : result(std::move(answer)) {}  // NOLINT: implicit by design
  StepOutcome(Status why, bool may_be_requests, bool had_begun)
      : lost(std::move(why)), blames_requests(may_be_requests), begun(had_begun) {}

  std::optional<StepResult> result;
  Status lost;  ///< why there is no result
  /// True if a request of this step may be the cause: they were lost during this step, and nothing
  /// outside kept them from running.
  bool blames_requests = false;
  /// True: the workers were lost in this step, and its requests lost what they had computed. False:
  /// the workers were lost before this step, so a request whose first step this was has lost
  /// nothing.
  bool begun = false;
};

/// Runs one step on the workers. An error means that they are lost for good: the loop then stops,
/// and every request ends with this status.
using StepFunction = std::function<Result<StepOutcome>(const StepPlan&)>;

/// How the requests share the steps.
struct Scheduling {
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  StepPace::Options pace = {};
  QueueLimits queue = {};
};

/// Drives the scheduler. As long as there is work, a thread plans, runs steps, detokenizes and
/// hands out the results. submit, cancel, load, status and drain may be called from any thread.
/// ServingState, not this class, decides whether requests of clients are accepted at all.
class InferenceLoop {
 public:
  /// model and everything that step refers to must outlive the loop. book: the one of the
  /// ServingState that submits requests; nullptr: one of its own.
  InferenceLoop(const ServedModel& model, const EngineLimits& limits, StepFunction step,
                const Scheduling& scheduling = {}, std::shared_ptr<RequestBook> book = nullptr);
  /// Stops after the current step. Open requests end with CANCELLED.
  ~InferenceLoop();

  /// Queues a request and returns its id. Its output may come before submit returns.
  /// RESOURCE_EXHAUSTED: Admission refuses it; UNAVAILABLE: the loop has stopped, because the
  /// workers are lost or the destructor runs; INVALID_ARGUMENT, with the field: the request is
  /// longer than the whole KV cache. On an error `open` is never called. A request without an
  /// origin is the program's own, which Admission does not see.
  Result<uint64_t, RefusedRequest> submit(ResolvedRequest request,
                                          const std::shared_ptr<OpenRequest>& open,
                                          const std::optional<RequestOrigin>& origin = {});
  Result<uint64_t, RefusedRequest> submit(const RequestBook::Lock& held, ResolvedRequest request,
                                          const std::shared_ptr<OpenRequest>& open,
                                          const std::optional<RequestOrigin>& origin);

  /// As OpenRequest::cancel; false also for unknown ids.
  bool cancel(uint64_t id);

  /// Ends the requests that have waited for too long. The loop does it between two steps; call it
  /// about once a second, because a step whose ranks have to be started again takes long.
  void end_late();

  const std::shared_ptr<RequestBook>& book() const { return book_; }
  EngineLoad load() const;
  /// What has been counted since the start.
  RequestCounts counts() const { return book_->counts(); }
  /// Seconds since a step ended well, or since the loop began if none has.
  double seconds_since_progress() const;
  int64_t queued_bytes() const;  ///< memory held by requests that wait for their first step

  /// Whether a step has ended well.
  enum class Awaited {
    kEnded,  ///< one has, lately
    kLater,  ///< requests are open, and the caller will be told
    kIdle,   ///< there is no step to wait for, or the loop has stopped (status)
  };
  /// Hears of a step, by the loop's thread and without a lock: ok if it has ended well, or why
  /// the workers were lost in it. nullopt: no request is open any more. It must not block.
  using StepListener = std::function<void(const std::optional<Status>& step)>;
  /// Tells kEnded if requests are open and a step has ended well within the time `lately`. If none
  /// has, `listener` hears once, of the next step.
  Awaited await_step(std::chrono::milliseconds lately, StepListener listener);

  /// Waits until the open requests have ended, and returns true if all ended by themselves. At the
  /// deadline, the remaining ones end with CANCELLED after the current step; `late` is called first
  /// and may shorten that step. The caller makes sure that no more requests are submitted.
  bool drain(Deadline deadline, const std::function<void()>& late = {});

  /// The error of the step function if it has failed, otherwise ok.
  Status status() const;

 private:
  friend OpenRequest;
  struct Delivery;
  using Requests = std::vector<std::shared_ptr<OpenRequest>>;
  bool cancel(const RequestBook::Lock& held, uint64_t id);
  void run();
  Status step(const StepPlan& plan);
  void note_good_step(const StepPlan& plan, Clock::time_point began);
  void note_time(const StepPlan& plan, double seconds);
  void evict(uint64_t id, RefusedRequest why);
  void evict_late();
  void resume(const StepPlan& plan, const StepOutcome& outcome);
  void fail(const Status& why);
  OpenRequest& take_out(uint64_t id, bool by_itself);
  void take_all(const Status& status);
  void report(Requests ended);
  void deliver(const StepResult& result);
  void tell(const std::optional<Status>& step);
  bool idle() const { return open_.empty() && out_.empty() && reporting_ == 0 && !busy_; }

  const ServedModel& model_;
  const StepFunction step_;
  const std::shared_ptr<RequestBook> book_;  // its lock guards the following, but for thread_
  std::condition_variable wake_;             // notified when the loop has something to do
  std::condition_variable idle_;             // notified when idle() may have become true
  Scheduler scheduler_;
  StepPace pace_;
  Admission admission_;
  std::map<uint64_t, std::shared_ptr<OpenRequest>> open_;
  Requests out_;       // of the engine, and do not know it yet
  int reporting_ = 0;  // threads in end_late() that tell requests of it
  Status failure_;     // not ok once the loop has stopped
  const Clock::time_point begun_ = Clock::now();
  std::optional<Clock::time_point> last_step_;  // when a step last ended well
  std::vector<StepListener> step_listeners_;    // those that wait for the next one
  uint64_t next_id_ = 1;
  bool end_all_ = false;
  bool stop_ = false;
  bool busy_ = false;   // the loop runs a step or hands out results
  std::thread thread_;  // the last member, because it uses all of the above
};

}  // namespace shoal
