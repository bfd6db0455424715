#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/running_clock.h"
#include "runtime/engine/request_queue.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/service_rates.h"
#include "runtime/engine/step_pace.h"
#include "server/serving/refused_request.h"

namespace shoal {

/// Who sent a request, and how long its answer is useful.
struct RequestOrigin {
  std::string client;  ///< the peer's address; requests with the same one share a part of the queue
  Deadline deadline = Deadline::infinite();  ///< of the client
  Clock::time_point arrived = Clock::now();  ///< when the front got it
};

/// Decides which requests may wait for the engine. It keeps within the limits of the queue, refuses
/// what cannot have its first token in time, and tells each client that it refuses when to try
/// again. It is part of InferenceLoop, and the lock of the
/// RequestBook guards it.
class Admission {
 public:
  /// The scheduler must outlive it. decode_stretch: as in StepPace::Options.
  Admission(const QueueLimits& limits, double decode_stretch, const Scheduler& scheduler)
      : sure_factor_(sure_factor(decode_stretch)), queue_(limits), scheduler_(scheduler) {}

  struct Verdict {
    std::optional<RefusedRequest> refused;
    std::vector<uint64_t> evict;  ///< if not refused: the caller ends these with evicted()
  };
  /// Whether a request that the scheduler would take may wait. bytes: the memory that it holds
  /// while it waits.
  Verdict decide(const EngineRequest& request, const RequestOrigin& origin, int64_t bytes);
  /// Records a request that was not refused and that the scheduler has.
  void add(uint64_t id, const RequestOrigin& origin, int64_t prompt_tokens, int64_t bytes);
  /// The request has ended, in whatever way. No effect if it does not wait.
  void remove(uint64_t id) { queue_.remove(id); }

  /// The ids of those that have waited for too long. The caller ends them with waited_too_long().
  std::vector<uint64_t> late() const;
  /// Why a waiting request ends before it has begun.
  RefusedRequest evicted(uint64_t id) const;
  RefusedRequest waited_too_long(uint64_t id) const;

  /// Records which requests begin with this plan, the scheduler's last one.
  void planned(const StepPlan& plan);
  /// The plan has ended well after this time.
  void ended_well(double seconds);

  int64_t queued_bytes() const { return queue_.bytes(); }

 private:
  std::optional<double> wait_s(const Prospect& prospect) const;
  std::optional<double> wait_s_of(uint64_t id) const;
  double least_wait_s(Backlog ahead) const;
  std::optional<RefusedRequest> refuse_wait(const Backlog& ahead) const;
  std::optional<RefusedRequest> refuse_deadline(const Backlog& ahead, int64_t prompt_tokens,
                                                const RequestOrigin& origin) const;
  RefusedRequest refuse(NotTaken why, std::string what, std::optional<double> wait_s) const;
  std::string describe(QueueLimit reached) const;

  const double sure_factor_;
  RequestQueue queue_;
  ServiceRates rates_;
  const Scheduler& scheduler_;
  ServiceRates::Step step_;  // of the last plan
  RunningClock::time_point last_full_ =
      RunningClock::now();  // the last plan that left no idle seat
};

}  // namespace shoal
