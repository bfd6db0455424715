#include "server/serving/admission.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "runtime/base/running_clock.h"

namespace shoal {
namespace {

/// Nobody is told to come again sooner or later than this.
constexpr double kSoonestRetryS = 0.1, kLatestRetryS = 3600;

double now_s() {
  return std::chrono::duration<double>(RunningClock::now().time_since_epoch()).count();
}

std::string tenths(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

}  // namespace

Admission::Verdict Admission::decide(const EngineRequest& request, const RequestOrigin& origin,
                                     int64_t bytes) const {
  const QueuedRequest queued{origin.client, static_cast<int64_t>(request.prompt.size()), bytes};
  const Backlog all =
      scheduler_.ahead_of(std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::max());
  const EngineLoad load = scheduler_.load();
  const RequestQueue::Engine engine{load.running + load.waiting - queue_.size(), all.prompt_tokens};
  RequestQueue::Room room = queue_.room_for(queued, engine);
  if (!room.granted) {
    return {refuse(NotTaken::kQueueFull, describe(room.reached),
                   wait_s(queued.tokens, request.priority)),
            {}};
  }
  if (std::optional<RefusedRequest> late = refuse_late(request, origin))
    return {std::move(late), {}};
  return {std::nullopt, std::move(room.give_way)};
}

std::string Admission::describe(QueueLimit reached) const {
  const EngineLoad load = scheduler_.load();
  const QueueLimits& limits = queue_.limits();
  switch (reached) {
    case QueueLimit::kRequests:
      return cat("the queue is full: ", load.running, " requests run and ", load.waiting,
                 " wait, of at most ", limits.requests, " (--max-num-queued-reqs)");
    case QueueLimit::kTokens:
      return cat(
          "the queue is full: the tokens of the prompts that wait and of this one would be "
          "more than ",
          limits.tokens, " (--max-num-queued-tokens)");
    case QueueLimit::kBytes:
      return cat("the queue is full: the requests that wait and this one would take more than ",
                 limits.bytes, " bytes (--max-queued-bytes)");
  }
  return "the queue is full";
}

/// A request that nothing is ahead of is never refused, so that it is tried how fast it goes.
std::optional<RefusedRequest> Admission::refuse_late(const EngineRequest& request,
                                                     const RequestOrigin& origin) const {
  const auto tokens = static_cast<int32_t>(request.prompt.size());
  Backlog ahead = scheduler_.ahead_of(tokens, request.priority);
  if (ahead.prompt_tokens == 0 && ahead.begins == 0) return std::nullopt;
  const std::optional<double> begin_s = rates_.seconds_for(ahead);
  if (begin_s && *begin_s > kSureFactor * queue_.limits().seconds)
    return refuse(NotTaken::kTooLate,
                  cat("it would wait for about ", tenths(*begin_s), " here, and may wait for ",
                      tenths(queue_.limits().seconds), " (--max-queue-time)"),
                  begin_s);
  ahead.prompt_tokens += tokens;
  const std::optional<double> first_token_s = rates_.seconds_for(ahead);
  const double left_s = origin.deadline.seconds_left();
  if (!first_token_s || *first_token_s <= kSureFactor * left_s) return std::nullopt;
  return refuse(NotTaken::kTooLate,
                cat("its first token would come in about ", tenths(*first_token_s),
                    ", but its deadline is in ", tenths(left_s)),
                begin_s);
}

RefusedRequest Admission::refuse(NotTaken why, std::string what,
                                 std::optional<double> wait_s) const {
  int retry_ms = 0;
  if (wait_s) {
    const double retry_s = std::clamp(*wait_s, kSoonestRetryS, kLatestRetryS);
    retry_ms = static_cast<int>(std::ceil(1e3 * retry_s));
    what += cat("; try again in ", tenths(retry_s));
  }
  return {why, Status::error(Code::kResourceExhausted, std::move(what)), retry_ms};
}

void Admission::add(uint64_t id, const RequestOrigin& origin, int64_t prompt_tokens,
                    int64_t bytes) {
  queue_.add(id, {origin.client, prompt_tokens, bytes, now_s()});
}

std::vector<uint64_t> Admission::late() const {
  return queue_.late(now_s());
}

RefusedRequest Admission::gave_way(uint64_t id) const {
  const QueuedRequest* request = queue_.find(id);
  return refuse(NotTaken::kShareExceeded,
                "this client's requests take more than half of the queue, and others want in, so "
                "that its latest ones give way",
                request != nullptr ? wait_s(request->tokens, 0) : std::nullopt);
}

RefusedRequest Admission::waited_too_long(uint64_t id) const {
  const QueuedRequest* request = queue_.find(id);
  return refuse(NotTaken::kQueuedTooLong,
                cat("it has waited for ", tenths(queue_.limits().seconds),
                    " without a place in a step (--max-queue-time)"),
                request != nullptr ? wait_s(request->tokens, 0) : std::nullopt);
}

void Admission::planned(const StepPlan& plan, const PrefillBudget& budget) {
  const StepSize size = size_of(plan);
  const int32_t most = std::min(size.decodes > 0 ? budget.beside_decodes : budget.alone,
                                engine_.max_num_batched_tokens - size.decodes);
  // A last token of a prompt that counts as a decode does not make the step less full.
  step_ = {.prompt_tokens = size.prompt_tokens,
           .full = size.prompt_tokens > 0 && size.prompt_tokens >= most - most / 8,
           .held_up = scheduler_.held_up()};
  for (const SequenceStep& sequence : plan.sequences) {
    if (queue_.remove(sequence.id)) ++step_.begun;
  }
}

void Admission::ended_well(double seconds) {
  step_.seconds = seconds;
  rates_.note(step_);
}

std::optional<double> Admission::wait_s(int64_t prompt_tokens, int32_t priority) const {
  return rates_.seconds_for(scheduler_.ahead_of(static_cast<int32_t>(prompt_tokens), priority));
}

}  // namespace shoal
