#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/step_plan.h"
#include "server/serving/generation_request.h"
#include "server/serving/refused_request.h"
#include "server/serving/request_book.h"
#include "server/serving/text_output.h"

namespace shoal {

class InferenceLoop;
struct RequestOrigin;

/// What one step produced for one request. The text is the part that is new, in whole characters.
/// Text that may belong to a stop string is held back, and a stop string that matched is cut off.
struct OutputDelta {
  std::vector<SampledToken> tokens;
  std::string text;
};

struct OutputEnd {
  /// Not ok: the request failed (workers lost, or shutdown). The tokens before that are valid.
  Status status;
  /// Set if the request ended before it had been in any step, to make room or because it waited for
  /// too long. It has cost nothing and can be tried again, as if it had never been accepted.
  std::optional<RefusedRequest> refused;
  Finish finish;
  std::string stop_text;  ///< the stop string that matched, if one did
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  /// As the metrics count it. Nullopt: it was refused.
  std::optional<RequestEnd> how = {};
  std::optional<double> queue_s = {}, first_token_s = {};  ///< as in RequestTimes
};

/// A request that was in the batch during more than this many crashes is assumed to be the cause.
inline constexpr int kMaxCrashes = 1;
/// A request that causes crashes would have caused another within this many steps beyond the place
/// where it stood, so its earlier crashes are forgotten.
inline constexpr int kStepsThatClear = 16;

/// One request, as the loop knows it from submit() to its end. Whoever wants the output derives
/// from this class: the LiveRequest of a client, a health probe, `shoal generate`. An object is one
/// request, so that it is submitted at most once.
///
/// The output is told by the loop's thread, or by the one that calls InferenceLoop::end_late(), but
/// never concurrently for one request, and without the lock of the book. The three functions that
/// are told must not block. They may submit and cancel requests, but not call the loop's drain or
/// destructor.
class OpenRequest {
 public:
  OpenRequest() = default;
  virtual ~OpenRequest() = default;
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

  /// A step gave the request a token.
  virtual void on_delta(OutputDelta delta) = 0;
  /// The workers were lost in a step of the request, which goes on once they run again.
  virtual void on_lost(const Status& /*why*/) {}
  /// Called exactly once, as the last call, if the request was accepted.
  virtual void on_end(OutputEnd end) = 0;

 protected:
  /// Takes the request out of the queue and the next step, and ends it with reason kCancelled at
  /// the next step boundary. Returns false, without an effect, if it is not accepted, has ended, or
  /// ends already. held: the lock of the loop's book.
  bool cancel(const RequestBook::Lock& held);

 private:
  friend InferenceLoop;

  void begin(InferenceLoop& loop, uint64_t number, const Tokenizer& tokenizer,
             const ResolvedRequest& request, const std::optional<RequestOrigin>& origin);
  bool take(const TokenEvent& event, std::string* delta);
  void forget_finish();
  bool note_crash(const SequenceStep& step);
  void note_good_step(const SequenceStep& step, Clock::time_point began);
  void report_end(RequestBook& book);

  // The lock of the book guards these two. Null: it is not accepted, or is out of the engine.
  InferenceLoop* loop_ = nullptr;
  uint64_t number_ = 0;  // the loop's id of it
  // Only the loop's thread uses the following from the first step on, and before that whoever holds
  // the lock. end_late() tells those whose end_.refused is set, which is set and read under the
  // lock.
  std::optional<TextOutput> text_;
  bool include_stop_ = false;
  int crashes_ = 0;     // how often the workers crashed during a step with this request
  int good_steps_ = 0;  // since the last of these crashes, beyond stood_at_
  int stood_at_ = 0;  // how many of its tokens were computed, or about to be, at the latest of them
  RequestTimes times_;
  OutputEnd end_;
};

}  // namespace shoal
