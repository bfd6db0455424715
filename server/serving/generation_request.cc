#include "server/serving/generation_request.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string_view>
#include <sys/random.h>
#include <utf8proc.h>

namespace shoal {
namespace {

Status invalid(std::string what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return Status::error(Code::kInvalidArgument, std::move(what), 0, file, line);
}

/// What a number must be: in [low, high], or in (low, high] where low itself makes no sense.
struct Bounds {
  double low;
  double high;
  bool above_low = false;
};

/// The value asked for, else the model's own, else as it is; checked as the float32 that the
/// sampler will use, so that 1e-60 does not pass as something above 0. Also refuses NaN and
/// infinities.
Status take(const char* field, std::optional<double> asked, std::optional<float> of_model,
            Bounds bounds, float* out) {
  if (!asked && !of_model) return Status();
  const double value = asked ? *asked : *of_model;
  const auto narrow = static_cast<float>(value);
  const bool inside =
      narrow <= bounds.high && (bounds.above_low ? narrow > bounds.low : narrow >= bounds.low);
  if (!inside) {
    return invalid(cat(field, asked ? "" : " (of generation_config.json)", " must be in ",
                       bounds.above_low ? "(" : "[", bounds.low, ", ", bounds.high, "], not ",
                       value));
  }
  *out = narrow;
  return Status();
}

Status check_range(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return invalid(cat(field, " must be in [", low, ", ", high, "], not ", value));
}

Result<uint64_t> random_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) == sizeof seed) return seed;
  return Status::error(Code::kInternal, "getrandom for a request's seed", errno);
}

Status resolve_sampling(const GenerationRequest& request, const ServedModel& model,
                        SamplingParams* sampling) {
  const GenerationConfig& defaults = model.generation;
  constexpr std::optional<float> kNone;
  SHOAL_RETURN_IF_ERROR(take("temperature", request.temperature, defaults.temperature, {0, 100},
                             &sampling->temperature));
  SHOAL_RETURN_IF_ERROR(
      take("top_p", request.top_p, defaults.top_p, {0, 1, true}, &sampling->top_p));
  SHOAL_RETURN_IF_ERROR(take("min_p", request.min_p, defaults.min_p, {0, 1}, &sampling->min_p));
  SHOAL_RETURN_IF_ERROR(take("repetition_penalty", request.repetition_penalty,
                             defaults.repetition_penalty, {0, 100, true},
                             &sampling->repetition_penalty));
  SHOAL_RETURN_IF_ERROR(take("presence_penalty", request.presence_penalty, kNone, {-2, 2},
                             &sampling->presence_penalty));
  SHOAL_RETURN_IF_ERROR(take("frequency_penalty", request.frequency_penalty, kNone, {-2, 2},
                             &sampling->frequency_penalty));
  const int64_t top_k = request.top_k.value_or(defaults.top_k.value_or(0));
  SHOAL_RETURN_IF_ERROR(check_range("top_k", top_k, -1, std::numeric_limits<int32_t>::max()));
  sampling->top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  if (!request.seed && !model.default_seed) {
    SHOAL_ASSIGN_OR_RETURN(sampling->seed, random_seed());
  } else {
    sampling->seed = request.seed ? *request.seed : *model.default_seed;
  }
  if (request.logprobs) {
    SHOAL_RETURN_IF_ERROR(check_range("logprobs", *request.logprobs, 0, kMaxLogprobs));
    sampling->logprobs = static_cast<int32_t>(*request.logprobs);
  }
  return Status();
}

/// Ids as the model takes them. The field's name is for the message.
Result<std::vector<int32_t>> checked_ids(const char* field, const std::vector<int64_t>& ids,
                                         int vocab_size) {
  std::vector<int32_t> checked;
  checked.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return invalid(
          cat(field, "[", i, "] is ", ids[i], "; the model's ids are 0 to ", vocab_size - 1));
    }
    checked.push_back(static_cast<int32_t>(ids[i]));
  }
  return checked;
}

/// Text that is surely too long is refused before it is tokenized, which takes time.
Status check_prompt_size(size_t bytes, int32_t max_model_len) {
  constexpr size_t kBytesPerToken = 256;  // more than any text's average
  constexpr size_t kAlways = size_t{1} << 20;
  const size_t most = std::max(kAlways, kBytesPerToken * static_cast<size_t>(max_model_len));
  if (bytes <= most) return {};
  return invalid(cat("the prompt has ", bytes, " bytes; at most ", most,
                     " are read for a model length of ", max_model_len, " tokens"));
}

Result<std::vector<int32_t>> resolve_prompt(const GenerationRequest& request,
                                            const ServedModel& model) {
  if (request.prompt.has_value() == request.prompt_ids.has_value()) {
    return invalid(
        cat("give exactly one of prompt and prompt_ids, not ", request.prompt ? "both" : "none"));
  }
  std::vector<int64_t> ids;
  if (request.prompt) {
    SHOAL_RETURN_IF_ERROR(check_prompt_size(request.prompt->size(), model.max_model_len));
    Result<std::vector<int32_t>> encoded =
        model.tokenizer.encode(*request.prompt, /*add_special=*/true);
    if (!encoded.ok())
      return encoded.status().because_of(Code::kInvalidArgument, "the prompt cannot be tokenized");
    ids.assign(encoded->begin(), encoded->end());
  }
  // A tokenizer may know ids that the model has no embedding for: the text's ids are checked too.
  const std::vector<int64_t>& source = request.prompt ? ids : *request.prompt_ids;
  const char* field = request.prompt ? "the prompt's token ids" : "prompt_ids";
  if (source.empty())
    return invalid(
        cat(request.prompt ? "prompt" : "prompt_ids", " gives no tokens; at least 1 is needed"));
  const int64_t most = int64_t{model.max_model_len} - 1;
  if (static_cast<int64_t>(source.size()) > most) {
    return invalid(cat("the prompt has ", source.size(), " tokens; at most ", most,
                       " fit, the model length of ", model.max_model_len, " less one to generate"));
  }
  return checked_ids(field, source, model.config.vocab_size);
}

bool is_utf8(std::string_view text) {
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t code_point;
    const utf8proc_ssize_t length = utf8proc_iterate(at, left, &code_point);
    if (length <= 0) return false;
    at += length;
    left -= length;
  }
  return true;
}

Status check_stop_strings(const std::vector<std::string>& stop) {
  if (stop.size() > kMaxStopStrings) {
    return invalid(
        cat("stop has ", stop.size(), " strings; at most ", kMaxStopStrings, " are allowed"));
  }
  for (size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty()) return invalid(cat("stop[", i, "] is empty"));
    if (stop[i].size() > kMaxStopBytes) {
      return invalid(cat("stop[", i, "] has ", stop[i].size(), " bytes; at most ", kMaxStopBytes,
                         " are allowed"));
    }
    // Output is whole characters: another string never matches, or would cut one in half.
    if (!is_utf8(stop[i])) return invalid(cat("stop[", i, "] is not valid UTF-8"));
  }
  return Status();
}

}  // namespace

Result<ResolvedRequest> resolve_request(const GenerationRequest& request,
                                        const ServedModel& model) {
  ResolvedRequest resolved;
  EngineRequest& engine = resolved.engine;
  SHOAL_RETURN_IF_ERROR(resolve_sampling(request, model, &engine.sampling));
  SHOAL_RETURN_IF_ERROR(check_stop_strings(request.stop));
  SHOAL_ASSIGN_OR_RETURN(
      engine.stop_token_ids,
      checked_ids("stop_token_ids", request.stop_token_ids, model.config.vocab_size));
  if (request.max_tokens && *request.max_tokens < 1) {
    return invalid(cat("max_tokens must be at least 1, not ", *request.max_tokens));
  }
  SHOAL_ASSIGN_OR_RETURN(engine.prompt, resolve_prompt(request, model));

  // Every output token is looked up in the list: once each is enough, however often a client
  // repeats them.
  std::sort(engine.stop_token_ids.begin(), engine.stop_token_ids.end());
  engine.stop_token_ids.erase(
      std::unique(engine.stop_token_ids.begin(), engine.stop_token_ids.end()),
      engine.stop_token_ids.end());
  const int64_t room = model.max_model_len - static_cast<int64_t>(engine.prompt.size());
  engine.max_tokens = static_cast<int32_t>(std::min(request.max_tokens.value_or(room), room));
  if (!request.ignore_eos) {
    const std::vector<int32_t>& of_generation = model.generation.eos_token_ids;
    engine.eos_token_ids = of_generation.empty() ? model.config.eos_token_ids : of_generation;
  }
  resolved.stop = request.stop;
  resolved.include_stop_in_output = request.include_stop_in_output;
  return resolved;
}

}  // namespace shoal
