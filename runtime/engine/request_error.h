#pragma once
#include <string>
#include <utility>

#include "runtime/base/status.h"

namespace shoal {

/// The part of a request that an error is about. Each interface names it in its own way: gRPC by
/// the field paths of openengine.v1, the command line and JSON lines by field_name().
enum class RequestField {
  kNone,  ///< the error is about no single field
  kRequestId,
  kPrompt,
  kPromptIds,
  kMaxTokens,
  kTemperature,
  kTopP,
  kTopK,
  kMinP,
  kRepetitionPenalty,
  kPresencePenalty,
  kFrequencyPenalty,
  kSeed,
  kStop,
  kStopTokenIds,
  kIgnoreEos,
  kLogprobs,
  kPriority,
};
inline constexpr int kRequestFields = static_cast<int>(RequestField::kPriority) + 1;

/// The name of a field, such as "temperature"; "" for kNone.
constexpr const char* field_name(RequestField field) {
  constexpr const char* kNames[] = {"",
                                    "request_id",
                                    "prompt",
                                    "prompt_ids",
                                    "max_tokens",
                                    "temperature",
                                    "top_p",
                                    "top_k",
                                    "min_p",
                                    "repetition_penalty",
                                    "presence_penalty",
                                    "frequency_penalty",
                                    "seed",
                                    "stop",
                                    "stop_token_ids",
                                    "ignore_eos",
                                    "logprobs",
                                    "priority"};
  static_assert(sizeof kNames / sizeof *kNames == kRequestFields);
  return kNames[static_cast<int>(field)];
}

/// Why a request is refused, and which field is to blame. The code that checks a field names it
/// here, so that nobody has to guess it from the text.
struct RequestError {
  RequestError() = default;
  RequestError(Status why) : status(std::move(why)) {}  // NOLINT: implicit, as in Result
  RequestError(RequestField about, Status why) : status(std::move(why)), field(about) {}

  bool ok() const { return status.ok(); }
  Code code() const { return status.code(); }

  Status status;
  RequestField field = RequestField::kNone;
  bool too_long = false;  ///< the prompt does not fit the model length or the KV cache
};

/// INVALID_ARGUMENT about this field. The call site is recorded as Cause::where.
inline RequestError invalid_field(RequestField field, std::string what,
                                  const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
  return {field, Status::error(Code::kInvalidArgument, std::move(what), 0, file, line)};
}

/// The same about a prompt that is too long.
inline RequestError prompt_too_long(RequestField field, std::string what,
                                    const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) {
  RequestError error = invalid_field(field, std::move(what), file, line);
  error.too_long = true;
  return error;
}

}  // namespace shoal
