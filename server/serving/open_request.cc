#include "server/serving/open_request.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "server/serving/inference_loop.h"

namespace shoal {
namespace {

RequestEnd how_ended(const OutputEnd& end) {
  if (!end.status.ok())
    return end.status.code() == Code::kCancelled ? RequestEnd::kAbort : RequestEnd::kError;
  switch (end.finish.reason) {
    case FinishReason::kStop:
      return RequestEnd::kStop;
    case FinishReason::kLength:
      return RequestEnd::kLength;
    case FinishReason::kCancelled:
      break;
  }
  return RequestEnd::kAbort;
}

int end_of(const SequenceStep& step) {
  return step.first_position + static_cast<int>(step.token_ids.size());
}

}  // namespace

bool OpenRequest::cancel(const RequestBook::Lock& held) {
  return loop_ != nullptr && loop_->cancel(held, number_);
}

/// The loop has accepted the request, and calls it by this number.
void OpenRequest::begin(InferenceLoop& loop, uint64_t number, const Tokenizer& tokenizer,
                        const ResolvedRequest& request,
                        const std::optional<RequestOrigin>& origin) {
  assert(!text_);  // an object is one request
  loop_ = &loop;
  number_ = number;
  text_.emplace(tokenizer, request.stop, request.include_stop_in_output);
  include_stop_ = request.include_stop_in_output;
  times_.queued = Clock::now();
  times_.arrived = origin ? origin->arrived : times_.queued;
  end_.prompt_tokens = static_cast<int32_t>(request.engine.prompt.size());
}

/// Appends the token's text to *delta. Returns true if the token was the last one; the end then has
/// the reason.
bool OpenRequest::take(const TokenEvent& event, std::string* delta) {
  ++end_.completion_tokens;
  const bool ended_by_id = event.finish && event.finish->reason == FinishReason::kStop;
  if (include_stop_ || !ended_by_id) *delta = text_->push(event.token.token_id);
  if (event.finish) *delta += text_->finish();
  if (text_->stopped()) {
    end_.finish = {FinishReason::kStop};
    end_.stop_text = text_->stop_text();
    return true;
  }
  if (event.finish) end_.finish = *event.finish;
  return event.finish.has_value();
}

/// The request was cancelled after it got its last token. So the cancellation ends it, and not that
/// token.
void OpenRequest::forget_finish() {
  end_.finish = {};
  end_.stop_text.clear();
}

/// The workers have crashed in this step of the request, which is where it then stood. Returns true
/// if it may be the cause.
bool OpenRequest::note_crash(const SequenceStep& step) {
  good_steps_ = 0;
  stood_at_ = std::max(stood_at_, end_of(step));
  return ++crashes_ > kMaxCrashes;
}

void OpenRequest::note_good_step(const SequenceStep& step, Clock::time_point began) {
  if (!times_.begun) times_.begun = began;
  // Its tokens are computed again first, beside those of others, which shows nothing new.
  if (crashes_ == 0 || end_of(step) <= stood_at_) return;
  if (++good_steps_ >= kStepsThatClear) crashes_ = stood_at_ = 0;
}

/// Counts the end, and tells it. A request that was refused before its first step counts as if it
/// had never been accepted.
void OpenRequest::report_end(RequestBook& book) {
  if (!end_.refused) {
    end_.how = how_ended(end_);
    end_.queue_s = times_.queue_s();
    end_.first_token_s = times_.first_token_s();
    const RequestBook::Lock lock(book);
    book.counts(lock).end(*end_.how, times_, end_.prompt_tokens, end_.completion_tokens,
                          Clock::now());
  }
  on_end(std::move(end_));
}

}  // namespace shoal
