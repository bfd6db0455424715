#include "server/serving/inference_loop.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/running_clock.h"
#include "runtime/base/wait.h"
#include "server/serving/result_check.h"

namespace shoal {
namespace {

/// The line of the log by which bench/mixed_load.py knows how long steps take.
void log_step(const StepPlan& plan, const StepSize& size, double seconds) {
  if (log_options().level > LogLevel::kDebug) return;
  log_debug(cat("step ", plan.step, ": ", size.decodes, " decodes, ", size.prompt_tokens,
                " tokens of prompts, ", std::lround(1e6 * seconds), " us"));
}

Status shutting_down() {
  return Status::error(Code::kCancelled, "the server is shutting down");
}

/// The end of a request that may be why the ranks were lost again, as `lost` says.
Status why_not_again(const Status& lost) {
  const bool shortage = lost.fault() == Fault::kShortage;
  return lost.because_of(
      shortage ? Code::kResourceExhausted : Code::kInternal,
      cat("the ranks ", shortage ? "ran out of memory, threads or descriptors" : "crashed",
          " twice while this request was in their step, with fewer than ", kStepsThatClear,
          " good steps beyond that place between; it is not tried again"));
}

}  // namespace

struct InferenceLoop::Delivery {
  OpenRequest* open = nullptr;
  OutputDelta delta;
  bool last = false;
};

InferenceLoop::InferenceLoop(const ServedModel& model, const EngineLimits& limits,
                             StepFunction step, const Scheduling& scheduling,
                             std::shared_ptr<RequestBook> book)
    : model_(model),
      step_(std::move(step)),
      book_(book ? std::move(book) : std::make_shared<RequestBook>(limits.max_model_len)),
      scheduler_(SchedulerKey(), limits, scheduling.policy),
      pace_(scheduling.pace),
      admission_(scheduling.queue, scheduling.pace.decode_stretch, scheduler_),
      thread_([this] { run(); }) {}

InferenceLoop::~InferenceLoop() {
  {
    const RequestBook::Lock lock(*book_);
    stop_ = true;
    if (failure_.ok())
      failure_ = shutting_down();  // refuses a request that is submitted from an on_end
  }
  wake_.notify_one();
  thread_.join();
}

Result<uint64_t, RefusedRequest> InferenceLoop::submit(ResolvedRequest request,
                                                       const std::shared_ptr<OpenRequest>& open,
                                                       const std::optional<RequestOrigin>& origin) {
  return submit(RequestBook::Lock(*book_), std::move(request), open, origin);
}

Result<uint64_t, RefusedRequest> InferenceLoop::submit(const RequestBook::Lock& /*held*/,
                                                       ResolvedRequest request,
                                                       const std::shared_ptr<OpenRequest>& open,
                                                       const std::optional<RequestOrigin>& origin) {
  if (!failure_.ok())
    return refuse(NotTaken::kEngineLost,
                  failure_.because_of(Code::kUnavailable, "the engine has stopped"));
  if (origin) request.engine.client = origin->client;
  request.engine.id = next_id_;
  if (RequestError error = scheduler_.check(request.engine); !error.ok())
    return refuse(NotTaken::kInvalid, std::move(error));
  const auto bytes = static_cast<int64_t>(kept_bytes(request));
  const auto tokens = static_cast<int64_t>(request.engine.prompt.size());
  if (origin) {
    Admission::Verdict verdict = admission_.decide(request.engine, *origin, bytes);
    if (verdict.refused) return std::move(*verdict.refused);
    for (const uint64_t other : verdict.evict) evict(other, admission_.evicted(other));
    admission_.add(next_id_, *origin, tokens, bytes);
  }
  open->begin(*this, next_id_, model_.tokenizer, request, origin);
  open_.emplace(next_id_, open);
  (void)scheduler_.add(std::move(request.engine));  // was checked
  wake_.notify_one();
  return next_id_++;
}

bool InferenceLoop::cancel(uint64_t id) {
  return cancel(RequestBook::Lock(*book_), id);
}

bool InferenceLoop::cancel(const RequestBook::Lock& /*held*/, uint64_t id) {
  if (!open_.contains(id)) return false;
  take_out(id, false);  // others may have its place in the queue at once
  wake_.notify_one();
  return true;
}

void InferenceLoop::end_late() {
  RequestBook::Lock lock(*book_);
  evict_late();
  // Those that were cancelled may be in the step that runs.
  const auto refused = std::stable_partition(out_.begin(), out_.end(),
                                             [](const auto& open) { return !open->end_.refused; });
  Requests ended(refused, out_.end());
  if (ended.empty()) return;
  out_.erase(refused, out_.end());
  ++reporting_;
  lock.unlock();
  report(std::move(ended));
  lock.lock();
  --reporting_;
  idle_.notify_all();
  wake_.notify_one();
}

EngineLoad InferenceLoop::load() const {
  const RequestBook::Lock lock(*book_);
  return scheduler_.load();
}

double InferenceLoop::seconds_since_progress() const {
  const RequestBook::Lock lock(*book_);
  return seconds_since(last_step_.value_or(begun_));
}

int64_t InferenceLoop::queued_bytes() const {
  const RequestBook::Lock lock(*book_);
  return admission_.queued_bytes();
}

InferenceLoop::Awaited InferenceLoop::await_step(std::chrono::milliseconds lately,
                                                 StepListener listener) {
  const RequestBook::Lock lock(*book_);
  if (!failure_.ok()) return Awaited::kIdle;  // no step comes any more
  // The step of a request that was cancelled meanwhile may hang too.
  if (open_.empty() && !busy_) return Awaited::kIdle;
  if (last_step_ && Clock::now() - *last_step_ <= lately) return Awaited::kEnded;
  step_listeners_.push_back(std::move(listener));
  return Awaited::kLater;
}

bool InferenceLoop::drain(Deadline deadline, const std::function<void()>& late) {
  RequestBook::Lock lock(*book_);
  const auto is_idle = [this] { return idle(); };
  if (wait_until_ready(idle_, lock, deadline, is_idle)) return true;
  end_all_ = true;
  wake_.notify_one();
  if (late) {
    lock.unlock();
    late();
    lock.lock();
  }
  wait_until_ready(idle_, lock, is_idle);
  return false;
}

Status InferenceLoop::status() const {
  const RequestBook::Lock lock(*book_);
  return failure_;
}

void InferenceLoop::run() {
  RequestBook::Lock lock(*book_);
  for (bool last = false; !last;) {
    wait_until_ready(wake_, lock, [this] {
      return stop_ || end_all_ || !out_.empty() || (open_.empty() && !step_listeners_.empty()) ||
             scheduler_.has_work();
    });
    busy_ = true;
    last = stop_;
    evict_late();
    if (stop_ || end_all_) take_all(shutting_down());
    Requests ended = std::exchange(out_, {});
    const StepPlan plan = scheduler_.plan(pace_.budget());
    admission_.planned(plan);
    lock.unlock();
    report(std::move(ended));
    const Status stepped = plan.sequences.empty() ? Status() : step(plan);
    if (!stepped.ok()) {
      // Only a shutdown gives up the ranks in a step.
      fail(stepped.code() == Code::kCancelled ? shutting_down() : stepped);
      last = true;
    }
    lock.lock();
    if (open_.empty() && !step_listeners_.empty()) {
      lock.unlock();
      tell(std::nullopt);
      lock.lock();
    }
    busy_ = false;
    if (idle()) idle_.notify_all();
  }
}

/// Removes an open request from the engine. All sequences end here, once, whatever the reason. The
/// caller holds the lock, and sets the end, of which the request hears later, without the lock.
OpenRequest& InferenceLoop::take_out(uint64_t id, bool by_itself) {
  scheduler_.finish(id, by_itself);
  admission_.remove(id);
  out_.push_back(std::move(open_.extract(id).mapped()));
  out_.back()->loop_ = nullptr;
  return *out_.back();
}

/// Tells them that they have ended, and lets go of them. Call it without the lock.
void InferenceLoop::report(Requests ended) {
  for (const auto& open : ended) open->report_end(*book_);
}

/// Ends every request with this status, and makes submit() refuse others from now on.
void InferenceLoop::fail(const Status& why) {
  RequestBook::Lock lock(*book_);
  failure_ = why;
  evict_late();
  take_all(why);
  Requests ended = std::exchange(out_, {});
  lock.unlock();
  report(std::move(ended));
}

/// Runs one plan on the workers and hands its result to the requests.
Status InferenceLoop::step(const StepPlan& plan) {
  const Clock::time_point at = Clock::now();
  const RunningClock::time_point began = RunningClock::now();
  SHOAL_ASSIGN_OR_RETURN(const StepOutcome outcome, step_(plan));
  const std::chrono::duration<double> took = RunningClock::now() - began;
  if (!outcome.result) {
    resume(plan, outcome);
    tell(outcome.lost);
    return Status();
  }
  SHOAL_RETURN_IF_ERROR(check_result(plan, *outcome.result, model_.config.vocab_size));
  note_good_step(plan, at);
  note_time(plan, took.count());
  deliver(*outcome.result);
  return Status();
}

void InferenceLoop::note_time(const StepPlan& plan, double seconds) {
  const StepSize size = size_of(plan);
  log_step(plan, size, seconds);
  const RequestBook::Lock lock(*book_);
  book_->counts(lock).step(int64_t{size.decodes} + size.prompt_tokens, seconds);
  pace_.note(size, seconds);
  admission_.ended_well(seconds);
}

/// The step, which began at this time, has ended well, which speaks for every request in it.
void InferenceLoop::note_good_step(const StepPlan& plan, Clock::time_point began) {
  const RequestBook::Lock lock(*book_);
  for (const SequenceStep& sequence : plan.sequences) {
    if (const auto it = open_.find(sequence.id); it != open_.end())
      it->second->note_good_step(sequence, began);
  }
}

/// Continues with new workers, whose KV cache is empty. Every request goes on from its tokens,
/// except those that were in the step during more than kMaxCrashes crashes in a short time and so
/// may be their cause.
void InferenceLoop::resume(const StepPlan& plan, const StepOutcome& outcome) {
  Requests lost, ended;
  {
    const RequestBook::Lock lock(*book_);
    scheduler_.requeue_running();
    for (const SequenceStep& sequence : plan.sequences) {
      const auto it = open_.find(sequence.id);
      if (it == open_.end()) continue;
      lost.push_back(it->second);
      it->second->times_.lost |= outcome.begun;
      if (outcome.blames_requests && it->second->note_crash(sequence))
        take_out(sequence.id, false).end_.status = why_not_again(outcome.lost);
    }
    for (const auto& [id, open] : open_) open->times_.lost |= open->times_.begun.has_value();
    ended = std::exchange(out_, {});
  }
  for (const auto& open : lost) open->on_lost(outcome.lost);
  report(std::move(ended));
}

/// Calls the listeners that have waited for this step.
void InferenceLoop::tell(const std::optional<Status>& step) {
  RequestBook::Lock lock(*book_);
  const std::vector<StepListener> listeners = std::exchange(step_listeners_, {});
  lock.unlock();
  for (const StepListener& listener : listeners) listener(step);
}

/// Locks twice, because the text is decoded and the requests are told without the lock. A request
/// that has ended is removed before it is told. So its blocks are free when its client learns of
/// the end.
void InferenceLoop::deliver(const StepResult& result) {
  std::vector<TokenEvent> events;
  std::vector<Delivery> deliveries;
  Requests ended;
  const Clock::time_point now = Clock::now();
  {
    const RequestBook::Lock lock(*book_);
    last_step_ = now;
    events = scheduler_.complete(result);
    for (const TokenEvent& event : events)
      deliveries.emplace_back().open = open_.at(event.token.id).get();
  }
  for (size_t i = 0; i < events.size(); ++i) {
    Delivery& delivery = deliveries[i];
    delivery.last = delivery.open->take(events[i], &delivery.delta.text);
    delivery.delta.tokens.push_back(std::move(events[i].token));
  }
  {
    const RequestBook::Lock lock(*book_);
    for (Delivery& delivery : deliveries) {
      book_->counts(lock).token(&delivery.open->times_, delivery.open->end_.prompt_tokens, now);
      if (!delivery.last) continue;
      if (delivery.open->loop_ != nullptr)
        take_out(delivery.open->number_, true);
      else
        delivery.open->forget_finish();  // it was cancelled in the meantime
    }
    ended = std::exchange(out_, {});
  }
  for (Delivery& delivery : deliveries) delivery.open->on_delta(std::move(delivery.delta));
  report(std::move(ended));
  tell(Status());
}

/// Takes a request out of the queue before it has begun. The caller holds the lock.
void InferenceLoop::evict(uint64_t id, RefusedRequest why) {
  OutputEnd& end = take_out(id, false).end_;
  end.status = why.error.status;
  end.refused = std::move(why);
}

/// Takes out those that have waited for too long. The caller holds the lock.
void InferenceLoop::evict_late() {
  for (const uint64_t id : admission_.late()) evict(id, admission_.waited_too_long(id));
}

/// Takes out every request with this status. The caller holds the lock.
void InferenceLoop::take_all(const Status& status) {
  // From the last one on, because each is at the end of the scheduler's list then.
  while (!open_.empty()) take_out(std::prev(open_.end())->first, false).end_.status = status;
  end_all_ = false;
}

}  // namespace shoal
