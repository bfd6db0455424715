#include "server/commands/request_json.h"

#include <charconv>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "server/flag_values.h"

namespace shoal {
namespace {

const std::vector<std::string>& known_fields() {
  static const std::vector<std::string> fields = {"prompt",
                                                  "prompt_ids",
                                                  "max_tokens",
                                                  "temperature",
                                                  "top_p",
                                                  "top_k",
                                                  "min_p",
                                                  "presence_penalty",
                                                  "frequency_penalty",
                                                  "stop",
                                                  "stop_token_ids",
                                                  "logprobs",
                                                  "ignore_eos",
                                                  "seed",
                                                  "repetition_penalty"};
  return fields;
}

Status bad(std::string_view where, const std::string& what) {
  return Status::error(Code::kInvalidArgument, cat(where, ": ", what));
}

Status check_fields(const Json& object, std::string_view where) {
  if (!object.is_object())
    return bad(where, "must be a JSON object such as {\"prompt\":\"...\",\"max_tokens\":8}");
  for (const auto& [name, value] : object.items()) {
    const auto& known = known_fields();
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_word(name, known);
    return bad(where, cat("unknown field ", shown(name),
                          nearest.empty() ? "; fields are the flags' names with underscores"
                                          : cat("; did you mean \"", nearest, "\"?")));
  }
  return {};
}

/// value = object[key], where it is there.
template <typename Value>
Status take(Result<std::optional<Value>> member, std::optional<Value>* value) {
  if (!member.ok()) return member.status();
  if (member->has_value()) *value = **member;
  return {};
}

Result<std::vector<int64_t>> id_array(const Json& array, const char* key, std::string_view where) {
  std::vector<int64_t> ids;
  if (array.is_array()) {
    ids.reserve(array.size());
    for (const Json& id : array) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) break;
      ids.push_back(id.get<int64_t>());
    }
    if (ids.size() == array.size()) return ids;
  }
  return bad(where, cat('"', key,
                        "\" must be an array of token ids, each a whole number in [0, 2^31 - 1]"));
}

Status take_lists(const Json& object, GenerationRequest* request, std::string_view where) {
  if (const auto ids = object.find("prompt_ids"); ids != object.end() && !ids->is_null()) {
    SHOAL_ASSIGN_OR_RETURN(request->prompt_ids, id_array(*ids, "prompt_ids", where));
  }
  if (const auto ids = object.find("stop_token_ids"); ids != object.end() && !ids->is_null()) {
    SHOAL_ASSIGN_OR_RETURN(request->stop_token_ids, id_array(*ids, "stop_token_ids", where));
  }
  const auto stop = object.find("stop");
  if (stop == object.end() || stop->is_null()) return {};
  request->stop.clear();
  for (const Json& text : stop->is_array() ? *stop : Json::array({*stop})) {
    if (!text.is_string()) return bad(where, "\"stop\" must be a string or an array of strings");
    request->stop.push_back(text.get<std::string>());
  }
  return {};
}

Status take_seed(const Json& object, GenerationRequest* request, std::string_view where) {
  const auto seed = object.find("seed");
  if (seed == object.end() || seed->is_null()) return {};
  if (!seed->is_number_unsigned())
    return bad(where, "\"seed\" must be a whole number in [0, 2^64 - 1]");
  request->seed = seed->get<uint64_t>();
  return {};
}

std::string float_json(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  std::string number(text, error == std::errc() ? end : text);
  // "-0" would be read as the integer 0, without its sign.
  if (number.find_first_of(".e") == std::string::npos) number += ".0";
  return number;
}

/// items joined with commas, each written by write(item).
template <typename Items, typename Write>
std::string json_array(const Items& items, const Write& write) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ',';
    text += write(item);
  }
  return text + "]";
}

std::string logprobs_json(const std::vector<SampledToken>& tokens) {
  return json_array(tokens, [](const SampledToken& token) {
    const std::string top = json_array(token.top, [](const TokenLogprob& candidate) {
      return cat('[', candidate.token_id, ',', float_json(candidate.logprob), ']');
    });
    return cat("{\"token_id\":", token.token_id, ",\"logprob\":", float_json(token.logprob),
               ",\"top\":", top, '}');
  });
}

}  // namespace

Result<GenerationRequest> parse_request_json(std::string_view line,
                                             const GenerationRequest& defaults,
                                             std::string_view where) {
  SHOAL_ASSIGN_OR_RETURN(const Json object, parse_json(line, where));
  SHOAL_RETURN_IF_ERROR(check_fields(object, where));
  GenerationRequest request = defaults;
  SHOAL_RETURN_IF_ERROR(take(json_string(object, "prompt", where), &request.prompt));
  SHOAL_RETURN_IF_ERROR(take(json_int(object, "max_tokens", where), &request.max_tokens));
  SHOAL_RETURN_IF_ERROR(take(json_double(object, "temperature", where), &request.temperature));
  SHOAL_RETURN_IF_ERROR(take(json_double(object, "top_p", where), &request.top_p));
  SHOAL_RETURN_IF_ERROR(take(json_int(object, "top_k", where), &request.top_k));
  SHOAL_RETURN_IF_ERROR(take(json_double(object, "min_p", where), &request.min_p));
  SHOAL_RETURN_IF_ERROR(
      take(json_double(object, "repetition_penalty", where), &request.repetition_penalty));
  SHOAL_RETURN_IF_ERROR(
      take(json_double(object, "presence_penalty", where), &request.presence_penalty));
  SHOAL_RETURN_IF_ERROR(
      take(json_double(object, "frequency_penalty", where), &request.frequency_penalty));
  SHOAL_RETURN_IF_ERROR(take(json_int(object, "logprobs", where), &request.logprobs));
  SHOAL_ASSIGN_OR_RETURN(const std::optional<bool> ignore_eos,
                         json_bool(object, "ignore_eos", where));
  request.ignore_eos = ignore_eos.value_or(request.ignore_eos);
  SHOAL_RETURN_IF_ERROR(take_lists(object, &request, where));
  SHOAL_RETURN_IF_ERROR(take_seed(object, &request, where));
  if (request.prompt.has_value() == request.prompt_ids.has_value()) {
    return bad(where, request.prompt ? "takes \"prompt\" or \"prompt_ids\", not both"
                                     : "needs \"prompt\" or \"prompt_ids\"");
  }
  return request;
}

std::string completion_json(const Completion& completion, std::string_view transport) {
  const char* reason = completion.end.reason == FinishReason::kStop     ? "stop"
                       : completion.end.reason == FinishReason::kLength ? "length"
                                                                        : "cancelled";
  return cat(
      "{\"prompt_token_ids\":",
      json_array(completion.prompt_token_ids, [](int32_t id) { return cat(id); }),
      ",\"token_ids\":",
      json_array(completion.tokens, [](const SampledToken& token) { return cat(token.token_id); }),
      ",\"text\":\"", json_escape(completion.text), "\",\"finish_reason\":\"", reason,
      "\",\"logprobs\":", completion.with_logprobs ? logprobs_json(completion.tokens) : "null",
      ",\"usage\":{\"prompt_tokens\":", completion.end.prompt_tokens,
      ",\"completion_tokens\":", completion.end.completion_tokens, "},\"transport\":\"", transport,
      "\"}");
}

}  // namespace shoal
