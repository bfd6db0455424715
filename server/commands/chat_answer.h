#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/deadline.h"
#include "runtime/base/json.h"
#include "server/serving/refused_request.h"

namespace shoal {

/// The answer to one chat, read from the server-sent events of /v1/chat/completions, or from the
/// error that the server sends instead.
class ChatAnswer {
 public:
  /// Takes the next bytes of the body, and appends the text in them to *text. INTERNAL: these are
  /// no such events.
  Status take(int http_status, std::string_view bytes, std::string* text);

  /// Whether all of it has come, also if it is an error.
  bool whole() const { return done_ || (http_status_ != 0 && http_status_ != 200); }
  /// What the server has said instead of an answer, or of its rest; empty: nothing.
  std::string error() const;
  /// Why the server has not taken the request. nullopt: it has taken it, or it does not say why
  /// not.
  std::optional<NotTaken> not_taken() const;
  /// Whether the error came in the middle of the answer, and another attempt may succeed.
  bool may_ask_again() const { return retryable_; }
  int http_status() const { return http_status_; }

  const std::string& text() const { return text_; }
  const std::string& finish_reason() const { return finish_reason_; }
  /// Whether its length has ended it.
  bool is_cut_off() const { return finish_reason_ == "length"; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t output_tokens() const { return output_tokens_; }
  double first_s() const { return first_s_; }  ///< seconds to the first text
  double last_s() const { return last_s_; }
  /// {"request_id", "token_ids", "text", "finish_reason", "logprobs", "usage"}, on one line.
  std::string json(bool with_logprobs) const;

 private:
  Status take_line(std::string_view line, std::string* text);
  Status take_event(const Json& event, std::string* text);
  void take_choice(const Json& choice, std::string* text);

  int http_status_ = 0;
  std::string rest_;  // a line that has not ended, or the body of an error
  bool done_ = false, retryable_ = false;
  std::string id_, text_, finish_reason_, error_;
  Json token_ids_ = Json::array(), logprobs_ = Json::array();
  int64_t prompt_tokens_ = 0, output_tokens_ = 0;
  const Clock::time_point started_ = Clock::now();
  double first_s_ = 0, last_s_ = 0;
};

}  // namespace shoal
