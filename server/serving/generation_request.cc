#include "server/serving/generation_request.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <sys/random.h>

#include "models/tokenizer/unicode.h"
#include "runtime/base/counted.h"

namespace shoal {
namespace {

/// The range of a number: [low, high], or (low, high] if low itself is not allowed.
struct Bounds {
  double low;
  double high;
  bool above_low = false;
};

/// Sets *out to the request's value, or else to the model's; without either, *out keeps its value.
/// The check uses the float32 that the sampler will use, so that 1e-60 does not pass as a number
/// above 0. It also refuses NaN and infinities.
RequestError take(RequestField field, std::optional<double> asked, std::optional<float> of_model,
                  Bounds bounds, float* out) {
  if (!asked && !of_model) return {};
  const double value = asked ? *asked : *of_model;
  const auto narrow = static_cast<float>(value);
  const bool inside =
      narrow <= bounds.high && (bounds.above_low ? narrow > bounds.low : narrow >= bounds.low);
  if (!inside) {
    return invalid_field(
        field, cat(field_name(field), asked ? "" : " (of generation_config.json)", " must be in ",
                   bounds.above_low ? "(" : "[", bounds.low, ", ", bounds.high, "], not ", value));
  }
  *out = narrow;
  return {};
}

/// Checks that a client's integer is in the range that the engine accepts.
RequestError take(RequestField field, int64_t asked, int32_t low, int32_t high, int32_t* out) {
  if (asked < low || asked > high) {
    return invalid_field(
        field, cat(field_name(field), " must be in [", low, ", ", high, "], not ", asked));
  }
  *out = static_cast<int32_t>(asked);
  return {};
}

Result<uint64_t> random_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) == sizeof seed) return seed;
  return Status::error(Code::kInternal, "getrandom for a request's seed", errno);
}

RequestError resolve_sampling(const GenerationRequest& request, const ServedModel& model,
                              SamplingParams* sampling) {
  using enum RequestField;
  const GenerationConfig& defaults = model.generation;
  constexpr std::optional<float> kNoDefault;
  SHOAL_RETURN_IF_ERROR(take(kTemperature, request.temperature, defaults.temperature, {0, 100},
                             &sampling->temperature));
  SHOAL_RETURN_IF_ERROR(take(kTopP, request.top_p, defaults.top_p, {0, 1, true}, &sampling->top_p));
  SHOAL_RETURN_IF_ERROR(take(kMinP, request.min_p, defaults.min_p, {0, 1}, &sampling->min_p));
  SHOAL_RETURN_IF_ERROR(take(kRepetitionPenalty, request.repetition_penalty,
                             defaults.repetition_penalty, {0, 100, true},
                             &sampling->repetition_penalty));
  SHOAL_RETURN_IF_ERROR(take(kPresencePenalty, request.presence_penalty, kNoDefault, {-2, 2},
                             &sampling->presence_penalty));
  SHOAL_RETURN_IF_ERROR(take(kFrequencyPenalty, request.frequency_penalty, kNoDefault, {-2, 2},
                             &sampling->frequency_penalty));
  if (defaults.top_k) sampling->top_k = *defaults.top_k;
  if (request.top_k) {
    SHOAL_RETURN_IF_ERROR(
        take(kTopK, *request.top_k, -1, std::numeric_limits<int32_t>::max(), &sampling->top_k));
  }
  sampling->top_k = std::max(sampling->top_k, 0);
  if (!request.seed && !model.default_seed) {
    SHOAL_ASSIGN_OR_RETURN(sampling->seed, random_seed());
  } else {
    sampling->seed = request.seed ? *request.seed : *model.default_seed;
  }
  if (request.logprobs) {
    SHOAL_RETURN_IF_ERROR(take(kLogprobs, *request.logprobs, 0, kMaxLogprobs, &sampling->logprobs));
  }
  return {};
}

/// Checks that all ids belong to the model. `name` names the list in the message.
template <typename Id>
RequestError check_ids(RequestField field, const char* name, const std::vector<Id>& ids,
                       int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return invalid_field(
        field, cat(name, "[", i, "] is ", ids[i], "; the model's ids are 0 to ", vocab_size - 1));
  }
  return {};
}

/// Converts ids that have passed check_ids() to the engine's type.
std::vector<int32_t> engine_ids(const std::vector<int64_t>& ids) {
  return std::vector<int32_t>(ids.begin(), ids.end());
}

RequestError check_prompt_length(RequestField field, size_t tokens, int32_t max_model_len) {
  if (tokens == 0)
    return invalid_field(field, cat(field_name(field), " gives no tokens; at least 1 is needed"));
  if (tokens < static_cast<size_t>(max_model_len)) return {};
  return prompt_too_long(
      field, cat("the prompt has ", counted(tokens, "token"), "; at most ",
                 counted(max_model_len - 1, "fits", "fit"), ", the model length of ", max_model_len,
                 " less one to generate"));
}

/// Refuses text that is certainly too long before it is tokenized, because tokenizing takes time.
RequestError check_prompt_size(size_t bytes, int32_t max_model_len) {
  constexpr size_t kBytesPerToken = 256;  // more than the average of any text
  constexpr size_t kAlways = size_t{1} << 20;
  const size_t most = std::max(kAlways, kBytesPerToken * static_cast<size_t>(max_model_len));
  if (bytes <= most) return {};
  return prompt_too_long(RequestField::kPrompt,
                         cat("the prompt has ", bytes, " bytes; at most ", most,
                             " are read for a model length of ", counted(max_model_len, "token")));
}

using PromptResult = Result<std::vector<int32_t>, RequestError>;

PromptResult resolve_text(const std::string& prompt, const ServedModel& model,
                          const std::atomic<bool>* given_up) {
  using enum RequestField;
  SHOAL_RETURN_IF_ERROR(check_prompt_size(prompt.size(), model.max_model_len));
  const auto most = static_cast<size_t>(model.max_model_len);
  Result<std::vector<int32_t>> ids =
      model.tokenizer.encode(prompt, /*add_special=*/true, {.max_ids = most, .given_up = given_up});
  if (ids.status().code() == Code::kCancelled) return RequestError(kPrompt, ids.status());
  if (!ids.ok()) {
    return RequestError(
        kPrompt, ids.status().because_of(Code::kInvalidArgument, "the prompt cannot be tokenized"));
  }
  if (ids->size() > most) {  // the rest of the prompt was not looked at
    return prompt_too_long(kPrompt, cat("the prompt has more than ", counted(most, "token"),
                                        "; at most ", counted(most - 1, "fits", "fit"),
                                        ", the model length of ", most, " less one to generate"));
  }
  SHOAL_RETURN_IF_ERROR(check_prompt_length(kPrompt, ids->size(), model.max_model_len));
  // A tokenizer may know ids that the model has no embedding for.
  SHOAL_RETURN_IF_ERROR(
      check_ids(kPrompt, "the prompt's token ids", *ids, model.config.vocab_size));
  return std::move(ids).value();
}

PromptResult resolve_prompt(const GenerationRequest& request, const ServedModel& model,
                            const std::atomic<bool>* given_up) {
  using enum RequestField;
  if (request.prompt.has_value() == request.prompt_ids.has_value()) {
    const char* given = request.prompt ? "both" : "none";
    return invalid_field(kPrompt, cat("give exactly one of prompt and prompt_ids, not ", given));
  }
  if (request.prompt) return resolve_text(*request.prompt, model, given_up);
  SHOAL_RETURN_IF_ERROR(
      check_prompt_length(kPromptIds, request.prompt_ids->size(), model.max_model_len));
  SHOAL_RETURN_IF_ERROR(
      check_ids(kPromptIds, field_name(kPromptIds), *request.prompt_ids, model.config.vocab_size));
  return engine_ids(*request.prompt_ids);
}

RequestError check_stop_strings(const std::vector<std::string>& stop) {
  const auto wrong = [](std::string what) {
    return invalid_field(RequestField::kStop, std::move(what));
  };
  if (stop.size() > kMaxStopStrings) {
    return wrong(cat("stop has ", counted(stop.size(), "string"), "; at most ", kMaxStopStrings,
                     " are allowed"));
  }
  for (size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty()) return wrong(cat("stop[", i, "] is empty"));
    if (stop[i].size() > kMaxStopBytes) {
      return wrong(cat("stop[", i, "] has ", stop[i].size(), " bytes; at most ", kMaxStopBytes,
                       " are allowed"));
    }
    // Output consists of whole characters, so any other string never matches or would cut one in
    // half.
    if (to_valid_utf8(stop[i]) != stop[i]) return wrong(cat("stop[", i, "] is not valid UTF-8"));
  }
  return {};
}

/// Removes repeated ids, because the list is searched for every output token.
std::vector<int32_t> without_repeats(std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Result<ResolvedRequest, RequestError> resolve_request(GenerationRequest request,
                                                      const ServedModel& model,
                                                      const std::atomic<bool>* given_up) {
  using enum RequestField;
  ResolvedRequest resolved;
  EngineRequest& engine = resolved.engine;
  SHOAL_RETURN_IF_ERROR(resolve_sampling(request, model, &engine.sampling));
  SHOAL_RETURN_IF_ERROR(check_stop_strings(request.stop));
  SHOAL_RETURN_IF_ERROR(check_ids(kStopTokenIds, field_name(kStopTokenIds), request.stop_token_ids,
                                  model.config.vocab_size));
  if (request.max_tokens && *request.max_tokens < 1) {
    return invalid_field(kMaxTokens,
                         cat("max_tokens must be at least 1, not ", *request.max_tokens));
  }
  const int64_t priority = request.priority.value_or(0);
  if (priority < INT32_MIN || priority > INT32_MAX)
    return invalid_field(kPriority, cat("priority must be in [-2^31, 2^31 - 1], not ", priority));
  engine.priority = static_cast<int32_t>(priority);
  SHOAL_ASSIGN_OR_RETURN(engine.prompt, resolve_prompt(request, model, given_up));

  engine.stop_token_ids = without_repeats(engine_ids(request.stop_token_ids));
  const int32_t room = model.max_model_len - static_cast<int32_t>(engine.prompt.size());
  engine.max_tokens = request.max_tokens && *request.max_tokens < room
                          ? static_cast<int32_t>(*request.max_tokens)
                          : room;
  if (!request.ignore_eos) {
    const std::vector<int32_t>& of_generation = model.generation.eos_token_ids;
    engine.eos_token_ids = of_generation.empty() ? model.config.eos_token_ids : of_generation;
  }
  resolved.stop = std::move(request.stop);
  resolved.include_stop_in_output = request.include_stop_in_output;
  return resolved;
}

size_t most_answer_bytes(const GenerationRequest& request, const ServedModel& model) {
  constexpr size_t kTextBytes = 8;
  constexpr size_t kLogprobBytes = 48;
  const int64_t most =
      std::min<int64_t>(request.max_tokens.value_or(model.max_model_len), model.max_model_len);
  const int64_t best = std::clamp<int64_t>(request.logprobs.value_or(0), 0, kMaxLogprobs);
  const size_t of_token =
      kTextBytes + (request.logprobs ? kLogprobBytes * (1 + static_cast<size_t>(best)) : 0);
  return static_cast<size_t>(std::max<int64_t>(most, 0)) * of_token;
}

size_t kept_bytes(const ResolvedRequest& request) {
  size_t bytes = sizeof request;
  bytes += (request.engine.prompt.size() + request.engine.stop_token_ids.size()) * sizeof(int32_t);
  // The matcher of a stop string has an integer for each of its bytes.
  for (const std::string& stop : request.stop) bytes += stop.size() * (1 + sizeof(size_t));
  return bytes;
}

}  // namespace shoal
