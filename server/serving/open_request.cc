#include "server/serving/open_request.h"

#include <utility>

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

}  // namespace

InferenceLoop::Open::Open(const Tokenizer& tokenizer, const ResolvedRequest& request,
                          std::shared_ptr<OutputSink> output,
                          const std::optional<RequestOrigin>& origin)
    : sink(std::move(output)),
      text(tokenizer, request.stop, request.include_stop_in_output),
      include_stop(request.include_stop_in_output) {
  times.queued = Clock::now();
  times.arrived = origin ? origin->arrived : times.queued;
  end.prompt_tokens = static_cast<int32_t>(request.engine.prompt.size());
}

bool InferenceLoop::Open::take(const TokenEvent& event, std::string* delta) {
  ++end.completion_tokens;
  const bool ended_by_id = event.finish && event.finish->reason == FinishReason::kStop;
  if (include_stop || !ended_by_id) *delta = text.push(event.token.token_id);
  if (event.finish) *delta += text.finish();
  if (text.stopped()) {
    end.finish = {FinishReason::kStop};
    end.stop_text = text.stop_text();
    return true;
  }
  if (event.finish) end.finish = *event.finish;
  return event.finish.has_value();
}

/// A request that was refused before its first step counts as if it had never been accepted.
void InferenceLoop::Open::report_end(RequestBook& book) {
  if (!end.refused) {
    end.how = how_ended(end);
    end.queue_s = times.queue_s();
    end.first_token_s = times.first_token_s();
    const RequestBook::Lock lock(book);
    book.counts(lock).end(*end.how, times, end.prompt_tokens, end.completion_tokens, Clock::now());
  }
  sink->on_end(std::move(end));
}

}  // namespace shoal
