#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/request_queue.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/service_rates.h"
#include "runtime/engine/step_pace.h"
#include "server/serving/refused_request.h"

namespace shoal {

/// Whose request it is, and until when its answer is of use.
struct RequestOrigin {
  std::string client;  ///< the peer's address; requests with the same one share a part of the queue
  Deadline deadline = Deadline::infinite();  ///< of the client
};

/// Decides which requests may wait for the engine. It keeps within the limits of the queue, refuses
/// what cannot have its first token in time, and tells everyone that it refuses when to come again.
/// It is part of InferenceLoop, whose lock guards it.
class Admission {
 public:
  /// The scheduler must outlive it and plan within these limits of the engine.
  Admission(const QueueLimits& queue, const EngineLimits& engine, const Scheduler& scheduler)
      : queue_(queue), engine_(engine), scheduler_(scheduler) {}

  struct Verdict {
    std::optional<RefusedRequest> refused;
    std::vector<uint64_t> give_way;  ///< if not refused: the caller ends these with gave_way()
  };
  /// Whether a request that the scheduler would take may wait. bytes: kept of it.
  Verdict decide(const EngineRequest& request, const RequestOrigin& origin, int64_t bytes) const;
  /// Records a request that was not refused and that the scheduler has.
  void add(uint64_t id, const RequestOrigin& origin, int64_t prompt_tokens, int64_t bytes);
  /// The request has ended, in whatever way. No effect if it does not wait.
  void remove(uint64_t id) { queue_.remove(id); }

  /// The ids of those that have waited for too long. The caller ends them with waited_too_long().
  std::vector<uint64_t> late() const;
  /// Why a waiting request ends before it has begun.
  RefusedRequest gave_way(uint64_t id) const;
  RefusedRequest waited_too_long(uint64_t id) const;

  /// Records which requests begin with this plan, which was made with this budget.
  void planned(const StepPlan& plan, const PrefillBudget& budget);
  /// The plan has ended well after this time.
  void ended_well(double seconds);

  int64_t queued_bytes() const { return queue_.bytes(); }

 private:
  std::optional<double> wait_s(int64_t prompt_tokens, int32_t priority) const;
  std::optional<RefusedRequest> refuse_late(const EngineRequest& request,
                                            const RequestOrigin& origin) const;
  RefusedRequest refuse(NotTaken why, std::string what, std::optional<double> wait_s) const;
  std::string describe(QueueLimit reached) const;

  RequestQueue queue_;
  ServiceRates rates_;
  const EngineLimits engine_;
  const Scheduler& scheduler_;
  ServiceRates::Step step_;  // of the last plan
};

}  // namespace shoal
