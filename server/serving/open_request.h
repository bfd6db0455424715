#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "server/serving/inference_loop.h"
#include "server/serving/request_book.h"
#include "server/serving/text_output.h"

namespace shoal {

/// A request that was in the batch during more than this many crashes is assumed to be the cause.
inline constexpr int kMaxCrashes = 1;
/// A request that causes crashes would have caused another within this many steps beyond the place
/// where it stood, so its earlier crashes are forgotten.
inline constexpr int kStepsThatClear = 16;

/// A request whose end has not been reported to its sink yet.
struct InferenceLoop::Open {
  Open(const Tokenizer& tokenizer, const ResolvedRequest& request,
       std::shared_ptr<OutputSink> output, const std::optional<RequestOrigin>& origin);

  /// Appends the token's text to *delta. Returns true if the token was the last one; `end` then has
  /// the reason.
  bool take(const TokenEvent& event, std::string* delta);
  /// The request was cancelled after it got its last token. So the cancellation ends it, and not
  /// that token.
  void cancelled() {
    end.finish = {};
    end.stop_text.clear();
  }

  /// The workers have crashed in this step of the request, which is where it then stood. Returns
  /// true if it may be the cause.
  bool note_crash(const SequenceStep& step) {
    good_steps = 0;
    stood_at = std::max(stood_at, end_of(step));
    return ++crashes > kMaxCrashes;
  }
  void note_good_step(const SequenceStep& step, Clock::time_point began) {
    if (!times.begun) times.begun = began;
    // Its tokens are computed again first, beside those of others, which shows nothing new.
    if (crashes == 0 || end_of(step) <= stood_at) return;
    if (++good_steps >= kStepsThatClear) crashes = stood_at = 0;
  }

  /// Counts the end, and tells it to the sink.
  void report_end(RequestBook& book);

  static int end_of(const SequenceStep& step) {
    return step.first_position + static_cast<int>(step.token_ids.size());
  }

  std::shared_ptr<OutputSink> sink;
  TextOutput text;
  bool include_stop;
  int crashes = 0;     // how often the workers crashed during a step with this request
  int good_steps = 0;  // since the last of these crashes, beyond stood_at
  int stood_at = 0;  // how many of its tokens were computed, or about to be, at the latest of them
  RequestTimes times;
  OutputEnd end;
};

}  // namespace shoal
