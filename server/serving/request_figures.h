#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/base/deadline.h"
#include "server/serving/tally.h"

namespace shoal {

/// How a request that was accepted has ended.
enum class RequestEnd {
  kStop,    ///< by an id or a stop string
  kLength,  ///< by its length
  kAbort,   ///< its client or a shutdown ended it
  kError,   ///< the ranks were lost, or it may be why they were
};
inline constexpr size_t kRequestEnds = 4;

/// "stop", "length", "abort" or "error", in vLLM's words.
const char* end_name(RequestEnd how);

/// The moments of one request, by the clock that its client waits by. A restart of its ranks
/// changes none of them, because the client has waited for that too.
struct RequestTimes {
  Clock::time_point arrived;               ///< its front got it
  Clock::time_point queued;                ///< the loop took it
  std::optional<Clock::time_point> begun;  ///< its first step that has ended well began
  std::optional<Clock::time_point> first_token, last_token;
  bool lost = false;  ///< what was computed of it was lost, and it has had no token since

  /// How long it waited for its first step, and its client for the first token, in seconds. Nullopt
  /// if it had none.
  std::optional<double> queue_s() const;
  std::optional<double> first_token_s() const;
};

/// What is counted about requests and steps since the start. Lengths are in tokens, times in
/// seconds.
struct RequestCounts {
  /// The ranges of lengths depend on max_model_len, in tokens.
  explicit RequestCounts(int32_t max_model_len);

  /// A step has succeeded. tokens: how many it computed, including tokens of prompts.
  void step(int64_t tokens, double seconds);
  /// A step that has ended at this time gave the request a token.
  void token(RequestTimes* times, int32_t prompt_tokens, Clock::time_point now);
  /// The request has ended at this time. Its length and times are counted if it ended by itself.
  void end(RequestEnd how, const RequestTimes& times, int32_t prompt_tokens, int32_t output_tokens,
           Clock::time_point now);

  /// The tokens of prompts whose requests have a first token. What is computed again after ranks
  /// were lost is not counted again.
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t recovered = 0;  ///< how often a request got a token although its ranks had been lost
  std::array<int64_t, kRequestEnds> ended{};

  Tally time_to_first_token, inter_token, per_output_token;
  Tally whole, queue, prefill, decode;
  Tally prompt_length, output_length;
  Tally step_tokens, step_seconds;
};

}  // namespace shoal
