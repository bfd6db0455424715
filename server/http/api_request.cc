#include "server/http/api_request.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "runtime/base/counted.h"

namespace shoal {

namespace {

constexpr int64_t kCompletionsMaxTokens = 16;
/// Far more than a conversation has. A value takes up to ten times the bytes that it has in the
/// body, and more than one copy of it lives.
constexpr size_t kMaxChatValues = 1'000'000;
constexpr size_t kMaxStopIds = 1024;
constexpr char kStopIdBounds[] = "at most 1024 token ids";
static_assert(kMaxStopStrings == 16 && kMaxStopBytes == 4096);
constexpr char kStopBounds[] = "at most 16 strings of at most 4096 bytes each";

/// A number is a JSON number, not the text of one, and a flag is true or false.
class BodyReader {
 public:
  BodyReader(const Json& body, HttpError* error) : body_(body), error_(error) {}

  /// The member, or nullptr if it is absent or null.
  const Json* find(const char* name) const {
    const auto member = body_.find(name);
    return member == body_.end() || member->is_null() ? nullptr : &*member;
  }
  void take(const char* name, std::optional<double>* value) const {
    const Json* member = find(name);
    if (member == nullptr) return;
    if (!member->is_number()) return refuse(name, "a number");
    *value = member->get<double>();
  }
  void take(const char* name, std::optional<int64_t>* value) const {
    const Json* member = find(name);
    if (member == nullptr) return;
    const Result<std::optional<int64_t>> read = json_int(body_, name, "");
    if (!read.ok()) return refuse(name, "a whole number of at most 63 bits");
    *value = *read;
  }
  void take(const char* name, bool* value) const {
    const Json* member = find(name);
    if (member == nullptr) return;
    if (!member->is_boolean()) return refuse(name, "true or false");
    *value = member->get<bool>();
  }
  void take(const char* name, std::string* value) const {
    const Json* member = find(name);
    if (member == nullptr) return;
    if (!member->is_string()) return refuse(name, "a string");
    *value = member->get<std::string>();
  }
  /// Clients send negative seeds too. They are taken as the same 64 bits.
  void take_seed(std::optional<uint64_t>* value) const {
    const Json* member = find("seed");
    if (member == nullptr) return;
    if (member->is_number_unsigned()) {
      *value = member->get<uint64_t>();
    } else if (member->is_number_integer()) {
      *value = static_cast<uint64_t>(member->get<int64_t>());
    } else {
      refuse("seed", "a whole number of at most 64 bits");
    }
  }
  void take_texts(const char* name, std::vector<std::string>* texts) const {
    const Json* member = find(name);
    if (member == nullptr) return;
    // Nothing is copied before it is checked, because it may be as long as the body.
    const bool one = !member->is_array();
    if (!one && member->size() > kMaxStopStrings) return refuse(name, kStopBounds);
    for (size_t i = 0; i < (one ? 1 : member->size()); ++i) {
      const Json& text = one ? *member : (*member)[i];
      if (!text.is_string()) return refuse(name, "a string or a list of strings");
      texts->push_back(text.get<std::string>());
    }
  }
  void take_ids(const char* name, std::vector<int64_t>* ids) const {
    const Json* member = find(name);
    if (member == nullptr) return;
    if (!member->is_array() || !is_id_list(*member)) return refuse(name, "a list of token ids");
    for (const Json& id : *member) ids->push_back(id.get<int64_t>());
  }
  void refuse(const char* name, const char* needed) const {
    if (error_->ok()) *error_ = bad_field(name, cat(name, " must be ", needed));
  }

  static bool is_id_list(const Json& list) {
    return std::all_of(list.begin(), list.end(), [](const Json& id) {
      return id.is_number_integer() &&
             (!id.is_number_unsigned() || id.get<uint64_t>() <= uint64_t{INT64_MAX});
    });
  }

 private:
  const Json& body_;
  HttpError* const error_;
};

void read_sampling(const BodyReader& body, GenerationRequest* request) {
  body.take("temperature", &request->temperature);
  body.take("top_p", &request->top_p);
  body.take("top_k", &request->top_k);
  body.take("min_p", &request->min_p);
  body.take("repetition_penalty", &request->repetition_penalty);
  body.take("presence_penalty", &request->presence_penalty);
  body.take("frequency_penalty", &request->frequency_penalty);
  body.take_seed(&request->seed);
  body.take_texts("stop", &request->stop);
  body.take_ids("stop_token_ids", &request->stop_token_ids);
  // Each prompt gets a copy, so that their size is checked before.
  if (request->stop.size() > kMaxStopStrings ||
      std::any_of(request->stop.begin(), request->stop.end(),
                  [](const std::string& text) { return text.size() > kMaxStopBytes; }))
    body.refuse("stop", kStopBounds);
  if (request->stop_token_ids.size() > kMaxStopIds) body.refuse("stop_token_ids", kStopIdBounds);
  body.take("ignore_eos", &request->ignore_eos);
  body.take("include_stop_str_in_output", &request->include_stop_in_output);
  body.take("priority", &request->priority);
}

void read_max_tokens(const BodyReader& body, ApiRoute route, GenerationRequest* request) {
  body.take("max_tokens", &request->max_tokens);
  // The newer name wins, as with OpenAI.
  body.take("max_completion_tokens", &request->max_tokens);
  if (!request->max_tokens && route == ApiRoute::kCompletions)
    request->max_tokens = kCompletionsMaxTokens;
}

HttpError read_logprobs(const BodyReader& body, ApiRoute route, GenerationRequest* request) {
  if (route == ApiRoute::kCompletions) {
    body.take("logprobs", &request->logprobs);
    return {};
  }
  bool wanted = false;
  std::optional<int64_t> top;
  body.take("logprobs", &wanted);
  body.take("top_logprobs", &top);
  if (top && *top != 0 && !wanted)
    return bad_field("top_logprobs", "top_logprobs needs logprobs to be true");
  if (wanted) request->logprobs = top.value_or(0);
  return {};
}

HttpError read_stream(const BodyReader& body, ApiRequest* request) {
  body.take("stream", &request->stream);
  const Json* options = body.find("stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) return bad_field("stream_options", "stream_options must be an object");
  if (!request->stream)
    return bad_field("stream_options", "stream_options needs stream to be true");
  HttpError error;
  const BodyReader reader(*options, &error);
  reader.take("include_usage", &request->include_usage);
  reader.take("continuous_usage_stats", &request->continuous_usage);
  if (!error.ok()) error.param = cat("stream_options.", error.param);
  return error;
}

/// Adds a request for each entry of `prompt`, all with the settings of `like`.
HttpError read_prompts(const Json* prompt, const GenerationRequest& like,
                       std::vector<GenerationRequest>* requests) {
  const auto wrong = [] {
    return bad_field("prompt",
                     "prompt must be a string, a list of token ids, or a list of either, and must "
                     "not be empty");
  };
  if (prompt == nullptr) return wrong();
  const bool one = prompt->is_string() ||
                   (prompt->is_array() && !prompt->empty() && prompt->front().is_number());
  if (!one && (!prompt->is_array() || prompt->empty())) return wrong();
  const size_t count = one ? 1 : prompt->size();
  if (count > kMaxPrompts)
    return bad_field("prompt", cat("prompt has ", counted(count, "entry", "entries"), "; at most ",
                                   kMaxPrompts, " are taken at once"));
  for (size_t i = 0; i < count; ++i) {
    const Json& entry = one ? *prompt : (*prompt)[i];
    GenerationRequest& request = requests->emplace_back(like);
    if (entry.is_string()) {
      request.prompt = entry.get<std::string>();
    } else if (entry.is_array() && BodyReader::is_id_list(entry)) {
      request.prompt_ids = entry.get<std::vector<int64_t>>();
    } else {
      return wrong();
    }
  }
  return {};
}

/// Takes what the template gets from the text again, because templates see the order of members.
HttpError read_chat(std::string_view text, const BodyReader& body, ApiRequest* request) {
  JsonLimits limits = kOrderedJsonLimits;
  limits.max_values = kMaxChatValues;
  Result<OrderedJson> parsed = parse_ordered_json(text, "the body", limits);
  if (!parsed.ok()) return bad_field("", explain(parsed.status()));
  const auto messages = parsed->find("messages");
  if (messages == parsed->end() || !messages->is_array() || messages->empty())
    return bad_field("messages", "messages must be a list of at least one message");
  request->messages = std::move(*messages);
  const auto kwargs = parsed->find("chat_template_kwargs");
  if (kwargs != parsed->end() && !kwargs->is_null()) {
    if (!kwargs->is_object())
      return bad_field("chat_template_kwargs", "chat_template_kwargs must be an object");
    request->template_kwargs = std::move(*kwargs);
  }
  body.take("add_generation_prompt", &request->generation_prompt);
  return {};
}

}  // namespace

Result<ApiRequest, HttpError> read_api_request(std::string_view text, ApiRoute route) {
  JsonLimits limits;
  if (route == ApiRoute::kChat) limits.max_values = kMaxChatValues;
  const Result<Json> parsed = parse_json(text, "the body", limits);
  if (!parsed.ok()) return bad_field("", explain(parsed.status()));
  if (!parsed->is_object()) return bad_field("", "the body must be a JSON object");
  ApiRequest request{.route = route};
  SHOAL_RETURN_IF_ERROR(check_fields(*parsed, route, &request.ignored));
  HttpError wrong_type;
  const BodyReader body(*parsed, &wrong_type);
  body.take("model", &request.model);
  body.take("request_id", &request.id);
  body.take("return_token_ids", &request.token_ids);
  GenerationRequest like;
  read_sampling(body, &like);
  read_max_tokens(body, route, &like);
  SHOAL_RETURN_IF_ERROR(read_logprobs(body, route, &like));
  SHOAL_RETURN_IF_ERROR(read_stream(body, &request));
  SHOAL_RETURN_IF_ERROR(wrong_type);
  if (route == ApiRoute::kChat) {
    SHOAL_RETURN_IF_ERROR(read_chat(text, body, &request));
    SHOAL_RETURN_IF_ERROR(wrong_type);
    request.prompts.push_back(std::move(like));
  } else {
    SHOAL_RETURN_IF_ERROR(read_prompts(body.find("prompt"), like, &request.prompts));
  }
  return request;
}

}  // namespace shoal
