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

/// The shortest and the longest time after which a client is told to try again.
constexpr double kSoonestRetryS = 0.1, kLatestRetryS = 3600;

double now_s() {
  return std::chrono::duration<double>(RunningClock::now().time_since_epoch()).count();
}

std::string tenths(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

/// Removes a waiting request from what is ahead of a later one.
void take_away(const QueuedRequest& request, Backlog* ahead) {
  ahead->begins = std::max<int64_t>(ahead->begins - 1, 0);
  ahead->prompt_tokens = std::max<int64_t>(ahead->prompt_tokens - request.tokens, 0);
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
  Backlog ahead = scheduler_.ahead_of(static_cast<int32_t>(queued.tokens), request.priority);
  for (const uint64_t id : room.give_way) take_away(*queue_.find(id), &ahead);
  std::optional<RefusedRequest> late = refuse_late(ahead, queued.tokens, origin);
  if (!late) return {std::nullopt, std::move(room.give_way)};
  if (!room.give_way.empty()) return {std::move(late), {}};
  // A queue that is too long for this request is full for it, so that others give way if they can.
  for (const uint64_t id : queue_.surplus_beside(origin.client)) {
    room.give_way.push_back(id);
    take_away(*queue_.find(id), &ahead);
    if (!refuse_late(ahead, queued.tokens, origin)) return {std::nullopt, std::move(room.give_way)};
  }
  return {std::move(late), {}};
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

/// A request with nothing ahead of it is always taken. Its steps are then measured again.
std::optional<RefusedRequest> Admission::refuse_late(const Backlog& ahead, int64_t prompt_tokens,
                                                     const RequestOrigin& origin) const {
  if (ahead.prompt_tokens == 0 && ahead.begins == 0) return std::nullopt;
  // The next place may become free right now, so that the first one in line is not refused for it.
  Backlog least = ahead;
  least.begins = std::max<int64_t>(least.begins - 1, 0);
  const std::optional<double> begin_s = rates_.seconds_for(ahead);
  const double most_wait_s = queue_.limits().seconds;
  if (rates_.least_seconds_for(least).value_or(0) > sure_factor_ * most_wait_s)
    return refuse(NotTaken::kTooLate,
                  cat("it would wait for about ", tenths(*begin_s), " here, and may wait for ",
                      tenths(most_wait_s), " (--max-queue-time)"),
                  begin_s);
  least.prompt_tokens += prompt_tokens;
  const double left_s = origin.deadline.seconds_left();
  if (rates_.least_seconds_for(least).value_or(0) <= sure_factor_ * left_s) return std::nullopt;
  Backlog with_its_own = ahead;
  with_its_own.prompt_tokens += prompt_tokens;
  return refuse(NotTaken::kTooLate,
                cat("its first token would come in about ",
                    tenths(rates_.seconds_for(with_its_own).value_or(0)),
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
  return refuse(NotTaken::kShareExceeded,
                "this client had more than half of the queue, and another client needs a place, so "
                "that its latest requests are refused",
                wait_s_of(id));
}

RefusedRequest Admission::waited_too_long(uint64_t id) const {
  return refuse(NotTaken::kQueuedTooLong,
                cat("it has waited for ", tenths(queue_.limits().seconds),
                    " without a place in a step (--max-queue-time)"),
                wait_s_of(id));
}

void Admission::planned(const StepPlan& plan) {
  step_ = {.prompt_tokens = size_of(plan).prompt_tokens,
           .full = scheduler_.budget_spent(),
           .held_up = scheduler_.held_up()};
  for (const SequenceStep& sequence : plan.sequences) {
    if (queue_.remove(sequence.id)) ++step_.begun;
  }
}

void Admission::ended_well(double seconds) {
  step_.seconds = seconds;
  rates_.note(step_);
}

std::optional<double> Admission::wait_s_of(uint64_t id) const {
  const QueuedRequest* request = queue_.find(id);
  return request == nullptr ? std::nullopt : wait_s(request->tokens, 0);
}

std::optional<double> Admission::wait_s(int64_t prompt_tokens, int32_t priority) const {
  return rates_.seconds_for(scheduler_.ahead_of(static_cast<int32_t>(prompt_tokens), priority));
}

}  // namespace shoal
