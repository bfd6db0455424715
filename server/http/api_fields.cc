#include "server/http/api_fields.h"

#include <algorithm>

namespace shoal {

namespace {

constexpr auto kRead = FieldUse::kRead;
constexpr auto kNeutral = FieldUse::kNeutral;
constexpr auto kPassed = FieldUse::kPassed;

constexpr size_t kMaxIgnoredShown = 16;
constexpr size_t kMaxNameShown = 64;

// The names are those of OpenAI's API and of vLLM's additions to it.
constexpr ApiField kFields[] = {
    {"model", true, true, kRead, "a served name; empty or absent: the only model"},
    {"prompt", true, false, kRead, "text, token ids, or a list of either: one choice for each"},
    {"messages", false, true, kRead, "the conversation, for the model's chat template"},
    {"max_tokens", true, true, kRead, "default 16 on completions, the model length on chat"},
    {"max_completion_tokens", true, true, kRead, "another name of max_tokens"},
    {"temperature", true, true, kRead, "0: greedy"},
    {"top_p", true, true, kRead, "in (0, 1]"},
    {"top_k", true, true, kRead, "0 or -1: off"},
    {"min_p", true, true, kRead, "in [0, 1]"},
    {"repetition_penalty", true, true, kRead, "in (0, 100]; 1: off"},
    {"presence_penalty", true, true, kRead, "in [-2, 2]"},
    {"frequency_penalty", true, true, kRead, "in [-2, 2]"},
    {"seed", true, true, kRead, "equal seeds give equal answers"},
    {"stop", true, true, kRead, "a string or at most 16"},
    {"stop_token_ids", true, true, kRead, "token ids that end the answer"},
    {"ignore_eos", true, true, kRead, "true: the end-of-sequence token does not end it"},
    {"include_stop_str_in_output", true, true, kRead, "true: the text keeps the stop string"},
    {"logprobs", true, true, kRead, "completions: the K best of each token; chat: true or false"},
    {"top_logprobs", false, true, kRead, "the K best of each token, with logprobs true"},
    {"priority", true, true, kRead, "lower goes first, with --scheduling-policy priority"},
    {"request_id", true, true, kRead, "an id of the client; the header x-request-id does the same"},
    {"stream", true, true, kRead, "true: server-sent events"},
    {"stream_options", true, true, kRead, "include_usage, continuous_usage_stats"},
    {"return_token_ids", true, true, kRead, "true: prompt_token_ids and token_ids of each choice"},
    {"chat_template_kwargs", false, true, kRead, "variables for the chat template"},
    {"add_generation_prompt", false, true, kRead, "default true"},

    {"n", true, true, kNeutral, "[1]"},
    {"best_of", true, false, kNeutral, "[1]"},
    {"echo", true, true, kNeutral, "[false]"},
    {"suffix", true, false, kNeutral, "[\"\"]"},
    {"logit_bias", true, true, kNeutral, "[{}]"},
    {"tools", false, true, kNeutral, "[[]]"},
    {"tool_choice", false, true, kNeutral, "[\"none\"]"},
    {"functions", false, true, kNeutral, "[[]]"},
    {"function_call", false, true, kNeutral, "[\"none\"]"},
    {"response_format", true, true, kNeutral, "[{\"type\":\"text\"}]"},
    {"modalities", false, true, kNeutral, "[[\"text\"]]"},
    {"audio", false, true, kNeutral, "[]"},
    {"web_search_options", false, true, kNeutral, "[]"},
    {"reasoning_effort", false, true, kNeutral, "[]"},
    {"verbosity", false, true, kNeutral, "[]"},
    {"chat_template", false, true, kNeutral, "[]"},
    {"documents", false, true, kNeutral, "[[]]"},
    {"continue_final_message", false, true, kNeutral, "[false]"},
    {"add_special_tokens", true, false, kNeutral, "[true]"},
    {"add_special_tokens", false, true, kNeutral, "[false]"},
    {"skip_special_tokens", true, true, kNeutral, "[true]"},
    {"spaces_between_special_tokens", true, true, kNeutral, "[true]"},
    {"min_tokens", true, true, kNeutral, "[0]"},
    {"length_penalty", true, true, kNeutral, "[1]"},
    {"use_beam_search", true, true, kNeutral, "[false]"},
    {"prompt_logprobs", true, true, kNeutral, "[]"},
    {"prompt_embeds", true, false, kNeutral, "[]"},
    {"truncate_prompt_tokens", true, true, kNeutral, "[]"},
    {"allowed_token_ids", true, true, kNeutral, "[]"},
    {"bad_words", true, true, kNeutral, "[[]]"},
    {"logits_processors", true, true, kNeutral, "[[]]"},
    {"structured_outputs", true, true, kNeutral, "[]"},
    {"guided_json", true, true, kNeutral, "[]"},
    {"guided_regex", true, true, kNeutral, "[]"},
    {"guided_choice", true, true, kNeutral, "[]"},
    {"guided_grammar", true, true, kNeutral, "[]"},
    {"return_tokens_as_token_ids", true, true, kNeutral, "[false]"},
    {"kv_transfer_params", true, true, kNeutral, "[]"},
    {"vllm_xargs", true, true, kNeutral, "[{}]"},
    {"mm_processor_kwargs", false, true, kNeutral, "[{}]"},

    {"user", true, true, kPassed, ""},
    {"metadata", false, true, kPassed, ""},
    {"store", false, true, kPassed, ""},
    {"service_tier", false, true, kPassed, ""},
    {"parallel_tool_calls", false, true, kPassed, ""},
    {"prediction", false, true, kPassed, ""},
    {"prompt_cache_key", false, true, kPassed, ""},
    {"prompt_cache_retention", false, true, kPassed, ""},
    {"safety_identifier", false, true, kPassed, ""},
    {"cache_salt", true, true, kPassed, ""},
};

bool is_neutral(const ApiField& field, const Json& value) {
  if (value.is_null()) return true;
  const Json neutral = Json::parse(field.meaning, nullptr, false);
  return std::find(neutral.begin(), neutral.end(), value) != neutral.end();
}

const ApiField* find_field(const std::string& name, ApiRoute route) {
  const auto* const found =
      std::find_if(std::begin(kFields), std::end(kFields), [&](const ApiField& field) {
        return (route == ApiRoute::kChat ? field.chat : field.completions) && name == field.name;
      });
  return found == std::end(kFields) ? nullptr : found;
}

HttpError not_implemented(const ApiField& field) {
  std::string neutral = field.meaning;
  neutral = neutral.substr(1, neutral.size() - 2);
  return {400,
          cat(field.name, " is not supported by this server: leave it out",
              neutral.empty() ? "" : cat(", or set it to ", neutral)),
          field.name, "UNSUPPORTED_FIELD"};
}

}  // namespace

std::span<const ApiField> api_fields() {
  return kFields;
}

HttpError check_fields(const Json& body, ApiRoute route, std::vector<std::string>* ignored) {
  for (const auto& [name, value] : body.items()) {
    const ApiField* field = find_field(name, route);
    if (field == nullptr) {
      ignored->push_back(name);
    } else if (field->use == FieldUse::kNeutral && !is_neutral(*field, value)) {
      return not_implemented(*field);
    }
  }
  return {};
}

std::string ignored_fields_header(const std::vector<std::string>& names) {
  std::string header;
  for (size_t i = 0; i < names.size() && i < kMaxIgnoredShown; ++i) {
    if (i > 0) header += ", ";
    for (const char c : names[i].substr(0, kMaxNameShown))
      header += c > ' ' && c < 0x7F && c != ',' ? c : '_';
  }
  if (names.size() > kMaxIgnoredShown)
    header += cat(", and ", names.size() - kMaxIgnoredShown, " more");
  return header;
}

}  // namespace shoal
