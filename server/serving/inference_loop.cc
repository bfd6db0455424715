#include "server/serving/inference_loop.h"

#include <algorithm>
#include <utility>

#include "server/serving/text_output.h"

namespace shoal {
namespace {

/// A result is what other processes sent: whether it answers the plan.
Status check_result(const StepPlan& plan, const StepResult& result, int vocab_size) {
  std::vector<uint64_t> expected;
  for (const SequenceStep& sequence : plan.sequences) {
    if (sequence.sample) expected.push_back(sequence.id);
  }
  const auto same_id = [](const SampledToken& token, uint64_t id) { return token.id == id; };
  if (result.step != plan.step || !std::equal(result.tokens.begin(), result.tokens.end(),
                                              expected.begin(), expected.end(), same_id)) {
    return Status::error(Code::kInternal,
                         cat("the workers answered step ", result.step, " with ",
                             result.tokens.size(), " tokens; asked was step ", plan.step, " for ",
                             expected.size(), " sequences, in order"));
  }
  for (const SampledToken& token : result.tokens) {
    if (token.token_id < 0 || token.token_id >= vocab_size) {
      return Status::error(Code::kInternal,
                           cat("the workers chose token ", token.token_id, " of a vocabulary of ",
                               vocab_size, " in step ", plan.step));
    }
  }
  return Status();
}

/// So many crashes may a request be present at before it counts as their cause.
constexpr int kMaxCrashes = 1;

Status shutting_down(Code code) {
  return Status::error(code, "the server is shutting down");
}

}  // namespace

/// A request whose end has not been handed out.
struct InferenceLoop::Open {
  Open(const Tokenizer& tokenizer, const ResolvedRequest& request,
       std::shared_ptr<OutputSink> output)
      : sink(std::move(output)),
        text(tokenizer, request.stop, request.include_stop_in_output),
        include_stop(request.include_stop_in_output) {
    end.prompt_tokens = static_cast<int32_t>(request.engine.prompt.size());
  }

  /// The token's text; true when it was the last one, and end then says why.
  bool take(const TokenEvent& event, std::string* delta);

  std::shared_ptr<OutputSink> sink;
  TextOutput text;
  bool include_stop;
  int crashes = 0;  // of the workers, while this request was in their step
  OutputEnd end;
};

bool InferenceLoop::Open::take(const TokenEvent& event, std::string* delta) {
  ++end.completion_tokens;
  const bool ended_by_id = event.finished && event.reason == FinishReason::kStop;
  if (include_stop || !ended_by_id) *delta = text.push(event.token.token_id);
  if (event.finished) *delta += text.finish();
  if (text.stopped()) {
    end.reason = FinishReason::kStop;
    end.stop_text = text.stop_text();
    return true;
  }
  if (!event.finished) return false;
  end.reason = event.reason;
  end.stop_token_id = event.stop_token_id;
  end.stopped_by_eos = event.stopped_by_eos;
  return true;
}

struct InferenceLoop::Delivery {
  uint64_t id = 0;
  Open* open = nullptr;
  OutputDelta delta;
  std::unique_ptr<Open> ended;  // open itself, where this was its last step
};

InferenceLoop::InferenceLoop(const ServedModel& model, const SchedulerLimits& limits,
                             StepFunction step)
    : model_(model), step_(std::move(step)), scheduler_(limits), thread_([this] { run(); }) {}

InferenceLoop::~InferenceLoop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Result<uint64_t> InferenceLoop::submit(ResolvedRequest request, std::shared_ptr<OutputSink> sink) {
  // Made and, on a refusal, destroyed without the lock: the sink is a stranger's.
  auto open = std::make_unique<Open>(model_.tokenizer, request, std::move(sink));
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_.because_of(Code::kUnavailable, "the engine has stopped");
    if (draining_ || stop_) return shutting_down(Code::kUnavailable);
    id = request.engine.id = next_id_;
    SHOAL_RETURN_IF_ERROR(scheduler_.add(std::move(request.engine)));
    open_.emplace(next_id_++, std::move(open));
  }
  wake_.notify_one();
  return id;
}

void InferenceLoop::cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    if (!open_.contains(id)) return;
    cancelled_.push_back(id);
  }
  wake_.notify_one();
}

EngineLoad InferenceLoop::load() const {
  const std::lock_guard lock(mutex_);
  return scheduler_.load();
}

bool InferenceLoop::drain(Deadline deadline, const std::function<void()>& late) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto is_idle = [this] { return idle(); };
  if (idle_.wait_until(lock, deadline.at(), is_idle)) return true;
  end_all_ = true;
  wake_.notify_one();
  if (late) late();
  idle_.wait(lock, is_idle);
  return false;
}

Status InferenceLoop::status() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void InferenceLoop::run() {
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    wake_.wait(
        lock, [this] { return stop_ || end_all_ || !cancelled_.empty() || scheduler_.has_work(); });
    busy_ = true;
    last = stop_;
    auto ended = stop_ || end_all_ ? take_all(shutting_down(Code::kCancelled)) : take_cancelled();
    const StepPlan plan = scheduler_.plan();
    lock.unlock();
    end(std::move(ended));
    const Status stepped = plan.sequences.empty() ? Status() : step(plan);
    if (!stepped.ok()) {
      fail(stepped);
      last = true;
    }
    lock.lock();
    busy_ = false;
    if (open_.empty()) idle_.notify_all();
  }
}

void InferenceLoop::end(std::vector<std::unique_ptr<Open>> ended) {
  for (const std::unique_ptr<Open>& open : ended) open->sink->on_end(std::move(open->end));
}

/// Ends every request with this status and refuses others from now on.
void InferenceLoop::fail(const Status& why) {
  std::unique_lock lock(mutex_);
  failure_ = why;
  auto ended = take_all(why);
  lock.unlock();
  end(std::move(ended));
}

/// One plan through the workers and out to the sinks.
Status InferenceLoop::step(const StepPlan& plan) {
  SHOAL_ASSIGN_OR_RETURN(const StepOutcome outcome, step_(plan));
  if (!outcome.result) {
    resume(plan, outcome);
    return Status();
  }
  SHOAL_RETURN_IF_ERROR(check_result(plan, *outcome.result, model_.config.vocab_size));
  deliver(*outcome.result);
  return Status();
}

/// The workers are new and know nothing: every request goes on from its tokens, but for those that
/// were in the step of two crashes, which may be their cause.
void InferenceLoop::resume(const StepPlan& plan, const StepOutcome& outcome) {
  std::vector<std::unique_ptr<Open>> ended;
  {
    const std::lock_guard lock(mutex_);
    scheduler_.requeue_running();
    for (const SequenceStep& sequence : plan.sequences) {
      const auto it = open_.find(sequence.id);
      if (it == open_.end() || !outcome.during_step || ++it->second->crashes <= kMaxCrashes)
        continue;
      scheduler_.finish(sequence.id);
      it->second->end.status = outcome.lost.because_of(
          Code::kInternal,
          "the ranks crashed twice while this request was in their step; it is not tried again");
      ended.push_back(std::move(open_.extract(it).mapped()));
    }
  }
  end(std::move(ended));
}

/// Three turns, because text is made and sinks are called without the lock, and a request that has
/// ended holds no blocks by the time its client hears of it.
void InferenceLoop::deliver(const StepResult& result) {
  std::vector<TokenEvent> events;
  std::vector<Delivery> deliveries;
  {
    const std::lock_guard lock(mutex_);
    events = scheduler_.complete(result);
    for (const TokenEvent& event : events) {
      Delivery& delivery = deliveries.emplace_back();
      delivery.id = event.id;
      delivery.open = open_.at(event.id).get();
    }
  }
  std::vector<Delivery*> last;
  for (size_t i = 0; i < events.size(); ++i) {
    if (deliveries[i].open->take(events[i], &deliveries[i].delta.text))
      last.push_back(&deliveries[i]);
    deliveries[i].delta.tokens.push_back(std::move(events[i].token));
  }
  {
    const std::lock_guard lock(mutex_);
    for (Delivery* delivery : last) {
      scheduler_.finish(delivery->id);  // a stop string's; by id or length it has gone already
      delivery->ended = std::move(open_.extract(delivery->id).mapped());
    }
  }
  for (Delivery& delivery : deliveries) {
    delivery.open->sink->on_delta(std::move(delivery.delta));
    if (delivery.ended) delivery.ended->sink->on_end(std::move(delivery.ended->end));
  }
}

/// Takes the requests that were cancelled since the last step out of the engine. The caller holds
/// the lock.
std::vector<std::unique_ptr<InferenceLoop::Open>> InferenceLoop::take_cancelled() {
  std::vector<std::unique_ptr<Open>> ended;
  for (const uint64_t id : std::exchange(cancelled_, {})) {
    auto node = open_.extract(id);
    if (node.empty()) continue;  // it has ended meanwhile
    scheduler_.finish(id);
    node.mapped()->end.reason = FinishReason::kCancelled;
    ended.push_back(std::move(node.mapped()));
  }
  return ended;
}

/// Takes every request out of the engine, to end with this status. The caller holds the lock.
std::vector<std::unique_ptr<InferenceLoop::Open>> InferenceLoop::take_all(const Status& status) {
  std::vector<std::unique_ptr<Open>> ended;
  for (auto& [id, open] : std::exchange(open_, {})) {
    scheduler_.finish(id);
    open->end.status = status;
    open->end.reason = FinishReason::kCancelled;
    ended.push_back(std::move(open));
  }
  cancelled_.clear();
  end_all_ = false;
  return ended;
}

}  // namespace shoal
