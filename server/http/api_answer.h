#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "server/http/api_request.h"
#include "server/serving/inference_loop.h"

namespace shoal {

/// What every answer to one request repeats.
struct AnswerHead {
  ApiRoute route = ApiRoute::kCompletions;
  std::string id;           ///< "cmpl-..." or "chatcmpl-..."
  std::string model;        ///< as the client named it
  std::string fingerprint;  ///< system_fingerprint
  int64_t created = 0;      ///< seconds since 1970
  bool logprobs = false;
  bool token_ids = false;
  bool continuous_usage = false;
};

/// The JSON of tokens that have not been written, as lists without their brackets.
struct TokenLists {
  std::string offsets = {}, logprobs = {}, tokens = {}, top = {};  ///< of completions
  std::string content = {};                                        ///< of chats
  std::string ids = {};
};

/// One choice of an answer, as far as it has come.
struct AnswerChoice {
  int index = 0;
  std::string text = {};                  ///< that has not been written
  std::vector<SampledToken> tokens = {};  ///< that are not in `lists` yet
  TokenLists lists = {};
  std::vector<int32_t> prompt_ids = {};  ///< only if the client wants token ids
  int64_t characters = 0;                ///< of the tokens before `tokens`, for text_offset
  bool begun = false;                    ///< its first event has been written
  bool ended = false;
  bool written = false;       ///< its end has been written
  OutputEnd end = {};         ///< if ended
  int32_t prompt_tokens = 0;  ///< known once the request is accepted
  int32_t output_tokens = 0;
};

/// Writes the JSON of OpenAI's answers. Floats have the fewest digits that read back as the same
/// float32, so that clients can compare bits. The tokenizer must outlive it.
class AnswerWriter {
 public:
  AnswerWriter(AnswerHead head, const Tokenizer& tokenizer)
      : head_(std::move(head)), tokenizer_(tokenizer) {}

  /// Moves tokens to the lists. A whole answer is made in such small parts, because a long one
  /// would take the event thread for seconds.
  void take_tokens(AnswerChoice& choice) const;

  /// The whole answer of all choices, which have ended.
  std::string whole(std::vector<AnswerChoice>& choices) const;

  /// The events that are due for a choice, "data: ...\n\n" each: the role, what is unwritten, and
  /// the end if it has ended. Empties text and tokens. The end is written once, with the last call.
  std::string events(AnswerChoice& choice) const;
  /// The event with the usage of all choices.
  std::string usage_event(const std::vector<AnswerChoice>& choices) const;

 private:
  std::string event(const std::string& choices, const std::string& usage) const;
  std::string choice_json(AnswerChoice& choice, bool streamed, bool with_end) const;
  void take_completion_token(const SampledToken& token, AnswerChoice& choice) const;
  void take_chat_token(const SampledToken& token, AnswerChoice& choice) const;
  std::string logprobs_json(const AnswerChoice& choice) const;
  std::string token_text(int32_t id) const;
  std::string candidate(const TokenLogprob& candidate) const;

  const AnswerHead head_;
  const Tokenizer& tokenizer_;
};

/// "data: [DONE]\n\n".
inline constexpr char kDoneEvent[] = "data: [DONE]\n\n";

}  // namespace shoal
