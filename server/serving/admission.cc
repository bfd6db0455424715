#include "server/serving/admission.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "runtime/base/counted.h"
#include "runtime/base/running_clock.h"

namespace shoal {
namespace {

/// The shortest and the longest time after which a client is told to try again.
constexpr double kSoonestRetryS = 0.1, kLatestRetryS = 3600;
/// If the queue was empty and a seat free for this long, what was learned of the queue is too old.
constexpr std::chrono::seconds kForgetAfter{5};

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
                                     int64_t bytes) {
  if (scheduler_.idle_seat() && RunningClock::now() - last_full_ > kForgetAfter)
    rates_.forget_begins();
  const QueuedRequest queued{origin.client, static_cast<int64_t>(request.prompt.size()), bytes};
  const Prospect prospect{origin.client, static_cast<int32_t>(queued.tokens), request.priority};
  const EngineLoad load = scheduler_.load();
  const RequestQueue::Engine engine{load.running + load.waiting - queue_.size(),
                                    load.prompt_tokens};
  RequestQueue::Room room = queue_.room_for(queued, engine);
  if (!room.granted)
    return {refuse(NotTaken::kQueueFull, describe(room.reached), wait_s(prospect)), {}};
  Backlog ahead = scheduler_.ahead_of(prospect, room.evict);
  if (std::optional<RefusedRequest> long_wait = refuse_wait(ahead)) {
    // A queue of this length would take exactly --max-queue-time. So the queue counts as full, and
    // requests of other clients may be evicted.
    const double length = static_cast<double>(ahead.begins) * sure_factor_ *
                          queue_.limits().seconds / *rates_.least_seconds_for(ahead);
    if (room.evict.empty()) {
      room.evict = queue_.surplus_beside(origin.client, static_cast<int64_t>(length));
      ahead = scheduler_.ahead_of(prospect, room.evict);
    }
    if (refuse_wait(ahead)) return {std::move(long_wait), {}};
  }
  return {refuse_deadline(ahead, queued.tokens, origin), std::move(room.evict)};
}

std::string Admission::describe(QueueLimit reached) const {
  const EngineLoad load = scheduler_.load();
  const QueueLimits& limits = queue_.limits();
  switch (reached) {
    case QueueLimit::kRequests:
      return cat("the queue is full: ", counted(load.running, "request runs", "requests run"),
                 " and ", counted(load.waiting, "waits", "wait"), ", of at most ", limits.requests,
                 " (--max-num-queued-reqs)");
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

/// How long the backlog takes at least. The next place may become free right now, so that the first
/// one in line never waits too long by this.
double Admission::least_wait_s(Backlog ahead) const {
  ahead.begins = std::max<int64_t>(ahead.begins - 1, 0);
  return rates_.least_seconds_for(ahead).value_or(0) / sure_factor_;
}

std::optional<RefusedRequest> Admission::refuse_wait(const Backlog& ahead) const {
  const double most_s = queue_.limits().seconds;
  if (least_wait_s(ahead) <= most_s) return std::nullopt;
  const std::optional<double> wait_s = rates_.seconds_for(ahead);
  return refuse(NotTaken::kTooLate,
                cat("it would wait for about ", tenths(*wait_s), " here, and may wait for ",
                    tenths(most_s), " (--max-queue-time)"),
                wait_s);
}

/// A request with nothing ahead of it is always taken. Its steps are then measured again.
std::optional<RefusedRequest> Admission::refuse_deadline(const Backlog& ahead,
                                                         int64_t prompt_tokens,
                                                         const RequestOrigin& origin) const {
  if (ahead.prompt_tokens == 0 && ahead.begins == 0) return std::nullopt;
  Backlog with_its_own = ahead;
  with_its_own.prompt_tokens += prompt_tokens;
  const double left_s = origin.deadline.seconds_left();
  if (least_wait_s(with_its_own) <= left_s) return std::nullopt;
  return refuse(NotTaken::kTooLate,
                cat("its first token would come in about ",
                    tenths(rates_.seconds_for(with_its_own).value_or(0)),
                    ", but its deadline is in ", tenths(left_s)),
                rates_.seconds_for(ahead));
}

RefusedRequest Admission::refuse(NotTaken why, std::string what,
                                 std::optional<double> wait_s) const {
  int retry_ms = 0;
  if (wait_s) {
    const double retry_s = std::clamp(*wait_s, kSoonestRetryS, kLatestRetryS);
    retry_ms = static_cast<int>(std::ceil(1e3 * retry_s));
    what += cat("; try again in ", tenths(retry_s));
  }
  return shoal::refuse(why, std::move(what), retry_ms);
}

void Admission::add(uint64_t id, const RequestOrigin& origin, int64_t prompt_tokens,
                    int64_t bytes) {
  queue_.add(id, {origin.client, prompt_tokens, bytes, now_s()});
}

std::vector<uint64_t> Admission::late() const {
  return queue_.late(now_s());
}

RefusedRequest Admission::evicted(uint64_t id) const {
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
  if (!scheduler_.idle_seat()) last_full_ = RunningClock::now();
}

void Admission::ended_well(double seconds) {
  step_.seconds = seconds;
  rates_.note(step_);
}

std::optional<double> Admission::wait_s_of(uint64_t id) const {
  const QueuedRequest* request = queue_.find(id);
  if (request == nullptr) return std::nullopt;
  return wait_s({request->client, static_cast<int32_t>(request->tokens), 0});
}

std::optional<double> Admission::wait_s(const Prospect& prospect) const {
  return rates_.seconds_for(scheduler_.ahead_of(prospect));
}

}  // namespace shoal
