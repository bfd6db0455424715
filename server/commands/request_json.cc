#include "server/commands/request_json.h"

#include <cmath>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/text_values.h"

namespace shoal {
namespace {

constexpr const char* kId = "id";
constexpr const char* kMessages = "messages";

/// The fields that a line may have: its own id, chat messages, and those of a request except for
/// the request id, which only clients of a server give.
std::vector<std::string> known_fields(LineKind kind) {
  std::vector<std::string> names = {kId};
  if (kind == LineKind::kRequest) names.emplace_back(kMessages);
  const RequestField last =
      kind == LineKind::kPrompt ? RequestField::kPromptIds : RequestField::kPriority;
  for (int field = static_cast<int>(RequestField::kPrompt); field <= static_cast<int>(last);
       ++field)
    names.emplace_back(field_name(static_cast<RequestField>(field)));
  return names;
}

/// What a line is.
const char* shape_of(LineKind kind) {
  return kind == LineKind::kPrompt ? "a JSON object such as {\"prompt\":\"...\"}"
                                   : "a JSON object such as {\"prompt\":\"...\",\"max_tokens\":8}";
}

/// What to write in the place of a field that no line has.
std::string instead_of(const std::string& name, const std::vector<std::string>& known,
                       LineKind kind) {
  if (name == "sampling") return "write the members of an answer's sampling as fields of the line";
  // Known in a line of generate.
  if (name == kMessages)
    return "a line has a prompt; this makes one of chat messages: echo '{\"prompt_ids\":['$(shoal "
           "render MODEL --messages FILE --ids)']}'";
  if (const std::string nearest = nearest_word(name, known); !nearest.empty())
    return cat("did you mean \"", nearest, "\"?");
  return kind == LineKind::kPrompt ? "the fields are id, prompt and prompt_ids"
                                   : "fields are the flags' names with underscores";
}

RequestError check_fields(const Json& object, LineKind kind) {
  using enum RequestField;
  if (!object.is_object()) return invalid_field(kNone, cat("must be ", shape_of(kind)));
  const std::vector<std::string> known = known_fields(kind);
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return invalid_field(kNone,
                         cat("unknown field ", shown(name), "; ", instead_of(name, known, kind)));
  }
  return {};
}

/// Keeps the line's own id, which its answer repeats.
RequestError take_id(const Json& object, std::string* id) {
  const auto member = object.is_object() ? object.find(kId) : object.end();
  if (member == object.end() || member->is_null()) return {};
  if (member->is_structured())
    return invalid_field(RequestField::kNone, "\"id\" must be a string, a number or a boolean");
  // A whole number of more than 64 bits is read as a double, which would come back as another one.
  constexpr double kExact = 9007199254740992;  // 2^53
  if (member->is_number_float() && std::abs(member->get<double>()) >= kExact)
    return invalid_field(
        RequestField::kNone,
        "\"id\" is a number that cannot be repeated exactly; write it as a string");
  *id = json_text(*member);
  return {};
}

/// Keeps the messages of a chat. Their members stay in the order of the line, which a template may
/// show.
RequestError take_messages(const Json& object, std::string_view line, OrderedJson* messages) {
  const auto member = object.find(kMessages);
  if (member == object.end() || member->is_null()) return {};
  JsonLimits limits = kOrderedJsonLimits;
  limits.unsigned_integers = true;  // a seed
  SHOAL_ASSIGN_OR_RETURN(OrderedJson ordered, parse_ordered_json(line, "", limits));
  // Once more, because messages have no such integers.
  SHOAL_ASSIGN_OR_RETURN(*messages, parse_ordered_json(ordered[kMessages].dump(), kMessages));
  return {};
}

/// Refuses a line that says nothing to go on from, or more than one thing.
RequestError check_prompt(const GenerationRequest& request, bool has_messages, LineKind kind) {
  const int given =
      (request.prompt ? 1 : 0) + (request.prompt_ids ? 1 : 0) + (has_messages ? 1 : 0);
  if (given == 1) return {};
  return invalid_field(
      RequestField::kPrompt,
      cat(given == 0 ? "needs" : "takes only", " one of \"prompt\"",
          kind == LineKind::kPrompt ? " and \"prompt_ids\"" : ", \"prompt_ids\" and \"messages\""));
}

/// The members of one line. Each is checked for its type and stored in the request. Absent and null
/// members change nothing.
class LineReader {
 public:
  explicit LineReader(const Json& object) : object_(object) {}

  RequestError take(RequestField field, std::optional<std::string>* value) const {
    return take(field, json_string(object_, field_name(field), ""), value);
  }
  RequestError take(RequestField field, std::optional<int64_t>* value) const {
    return take(field, json_int(object_, field_name(field), ""), value);
  }
  RequestError take(RequestField field, std::optional<double>* value) const {
    return take(field, json_double(object_, field_name(field), ""), value);
  }
  RequestError take(RequestField field, bool* value) const {
    std::optional<bool> read;
    SHOAL_RETURN_IF_ERROR(take(field, json_bool(object_, field_name(field), ""), &read));
    *value = read.value_or(*value);
    return {};
  }
  RequestError take(RequestField field, std::optional<uint64_t>* value) const {
    const Json* seed = find(field);
    if (seed == nullptr) return {};
    if (!seed->is_number_unsigned()) {
      return invalid_field(
          field, cat('"', field_name(field), "\" must be a whole number in [0, 2^64 - 1]"));
    }
    *value = seed->get<uint64_t>();
    return {};
  }
  /// Reads token ids. `ids` may be a vector or an optional vector.
  template <typename Ids>
  RequestError take_ids(RequestField field, Ids* ids) const {
    const Json* array = find(field);
    if (array == nullptr) return {};
    std::vector<int64_t> read;
    const auto is_id = [](const Json& id) {
      return id.is_number_integer() && id >= 0 && id <= INT32_MAX;
    };
    if (!array->is_array() || !std::all_of(array->begin(), array->end(), is_id)) {
      return invalid_field(
          field, cat('"', field_name(field),
                     "\" must be an array of token ids, each a whole number in [0, 2^31 - 1]"));
    }
    for (const Json& id : *array) read.push_back(id.get<int64_t>());
    *ids = std::move(read);
    return {};
  }
  /// Reads a list of strings, or a single string.
  RequestError take_texts(RequestField field, std::vector<std::string>* texts) const {
    const Json* value = find(field);
    if (value == nullptr) return {};
    texts->clear();
    for (const Json& text : value->is_array() ? *value : Json::array({*value})) {
      if (!text.is_string()) {
        return invalid_field(
            field, cat('"', field_name(field), "\" must be a string or an array of strings"));
      }
      texts->push_back(text.get<std::string>());
    }
    return {};
  }

 private:
  template <typename Value>
  static RequestError take(RequestField field, Result<std::optional<Value>> member,
                           std::optional<Value>* value) {
    if (!member.ok()) return {field, member.status()};
    if (member->has_value()) *value = **member;
    return {};
  }
  /// Returns nullptr if the field is absent or null.
  const Json* find(RequestField field) const {
    const auto member = object_.find(field_name(field));
    return member == object_.end() || member->is_null() ? nullptr : &*member;
  }

  const Json& object_;
};

/// The items joined with commas. write(item) writes each.
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
      return cat('[', candidate.token_id, ',', json_float(candidate.logprob), ']');
    });
    return cat("{\"token_id\":", token.token_id, ",\"logprob\":", json_float(token.logprob),
               ",\"top\":", top, '}');
  });
}

std::string sampling_json(const SamplingParams& sampling) {
  return cat("{\"temperature\":", json_float(sampling.temperature),
             ",\"top_p\":", json_float(sampling.top_p), ",\"top_k\":", sampling.top_k,
             ",\"min_p\":", json_float(sampling.min_p),
             ",\"repetition_penalty\":", json_float(sampling.repetition_penalty),
             ",\"presence_penalty\":", json_float(sampling.presence_penalty),
             ",\"frequency_penalty\":", json_float(sampling.frequency_penalty),
             ",\"seed\":", sampling.seed, '}');
}

}  // namespace

Result<GenerationRequest, RequestError> parse_request_json(std::string_view line,
                                                           const GenerationRequest& defaults,
                                                           LineKind kind, std::string* id,
                                                           OrderedJson* messages) {
  using enum RequestField;
  const Result<Json> object = parse_json(line, "", {.distinct_names = true});
  if (!object.ok()) {
    return invalid_field(kNone,
                         cat(object.status().message(), "; a line must be ", shape_of(kind)));
  }
  std::string own_id;
  SHOAL_RETURN_IF_ERROR(take_id(*object, &own_id));
  // The error of a line that is wrong otherwise is reported under its id too.
  if (id != nullptr) *id = own_id;
  SHOAL_RETURN_IF_ERROR(check_fields(*object, kind));
  OrderedJson own_messages;
  SHOAL_RETURN_IF_ERROR(take_messages(*object, line, &own_messages));
  GenerationRequest request = defaults;
  const LineReader reader(*object);
  SHOAL_RETURN_IF_ERROR(reader.take(kPrompt, &request.prompt));
  SHOAL_RETURN_IF_ERROR(reader.take_ids(kPromptIds, &request.prompt_ids));
  SHOAL_RETURN_IF_ERROR(reader.take(kMaxTokens, &request.max_tokens));
  SHOAL_RETURN_IF_ERROR(reader.take(kTemperature, &request.temperature));
  SHOAL_RETURN_IF_ERROR(reader.take(kTopP, &request.top_p));
  SHOAL_RETURN_IF_ERROR(reader.take(kTopK, &request.top_k));
  SHOAL_RETURN_IF_ERROR(reader.take(kMinP, &request.min_p));
  SHOAL_RETURN_IF_ERROR(reader.take(kRepetitionPenalty, &request.repetition_penalty));
  SHOAL_RETURN_IF_ERROR(reader.take(kPresencePenalty, &request.presence_penalty));
  SHOAL_RETURN_IF_ERROR(reader.take(kFrequencyPenalty, &request.frequency_penalty));
  SHOAL_RETURN_IF_ERROR(reader.take(kSeed, &request.seed));
  SHOAL_RETURN_IF_ERROR(reader.take_texts(kStop, &request.stop));
  SHOAL_RETURN_IF_ERROR(reader.take_ids(kStopTokenIds, &request.stop_token_ids));
  SHOAL_RETURN_IF_ERROR(reader.take(kIgnoreEos, &request.ignore_eos));
  SHOAL_RETURN_IF_ERROR(reader.take(kLogprobs, &request.logprobs));
  SHOAL_RETURN_IF_ERROR(reader.take(kPriority, &request.priority));
  SHOAL_RETURN_IF_ERROR(check_prompt(request, !own_messages.is_null(), kind));
  if (messages != nullptr) *messages = std::move(own_messages);
  return request;
}

std::string line_json(const std::string& id, int64_t number) {
  return cat(id.empty() ? "" : cat("\"id\":", id, ','),
             number > 0 ? cat("\"line\":", number, ',') : "");
}

std::string prompt_token_ids_json(const std::vector<int32_t>& ids) {
  return cat("\"prompt_token_ids\":", json_array(ids, [](int32_t token) { return cat(token); }));
}

std::string completion_json(const Completion& completion, std::string_view transport,
                            const std::string& id, int64_t number) {
  const char* reason = completion.end.finish.reason == FinishReason::kStop     ? "stop"
                       : completion.end.finish.reason == FinishReason::kLength ? "length"
                                                                               : "cancelled";
  return cat(
      '{', line_json(id, number), prompt_token_ids_json(completion.prompt_token_ids),
      ",\"token_ids\":",
      json_array(completion.tokens, [](const SampledToken& token) { return cat(token.token_id); }),
      ",\"text\":\"", json_escape(completion.text), "\",\"finish_reason\":\"", reason,
      "\",\"logprobs\":",
      completion.sampling.logprobs >= 0 ? logprobs_json(completion.tokens) : "null",
      ",\"usage\":{\"prompt_tokens\":", completion.end.prompt_tokens,
      ",\"completion_tokens\":", completion.end.completion_tokens,
      "},\"sampling\":", sampling_json(completion.sampling), ",\"transport\":\"", transport, "\"}");
}

}  // namespace shoal
