#include "server/http/text_exchange.h"

#include <atomic>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/log.h"

namespace shoal {

namespace {

/// The most ids of one call. An id takes several bytes in either direction.
constexpr size_t kMaxIds = size_t{1} << 20;

/// The fields of a body, or why there are none.
Result<Json, HttpError> read_object(const std::string& body) {
  Result<Json> parsed = parse_json(body, "the body");
  if (!parsed.ok()) return bad_field("", explain(parsed.status()));
  if (!parsed->is_object()) return bad_field("", "the body must be a JSON object");
  return std::move(parsed).value();
}

HttpError check_model(const Json& body, const ServingState& state) {
  const Result<std::optional<std::string>> model = json_string(body, "model", "the body");
  if (!model.ok()) return bad_field("model", "model must be a string");
  const Status status = state.check_model(model->value_or(""));
  return status.ok() ? HttpError{} : HttpError{404, explain(status), "model", "model_not_found"};
}

HttpResponse json_response(std::string body) {
  return {.body = std::move(body)};
}

Result<HttpResponse, HttpError> tokenize(const Json& body, const ServedModel& model,
                                         const std::atomic<bool>& given_up) {
  const Result<std::optional<std::string>> prompt = json_string(body, "prompt", "the body");
  if (!prompt.ok() || !prompt->has_value()) return bad_field("prompt", "prompt must be a string");
  const Result<std::optional<bool>> special = json_bool(body, "add_special_tokens", "the body");
  const Result<std::optional<bool>> strings = json_bool(body, "return_token_strs", "the body");
  if (!special.ok()) return bad_field("add_special_tokens", "add_special_tokens must be a boolean");
  if (!strings.ok()) return bad_field("return_token_strs", "return_token_strs must be a boolean");
  const Result<std::vector<int32_t>> ids = model.tokenizer.encode(
      **prompt, special->value_or(true), {.max_ids = kMaxIds, .given_up = &given_up});
  if (!ids.ok()) return bad_field("prompt", explain(ids.status()));
  if (ids->size() > kMaxIds)
    return bad_field("prompt", cat("prompt has more than ", kMaxIds, " tokens"));
  std::string list, texts;
  for (const int32_t id : *ids) {
    list += cat(list.empty() ? "" : ",", id);
    if (strings->value_or(false))
      texts += cat(texts.empty() ? "" : ",", '"', json_escape(model.tokenizer.piece(id)), '"');
  }
  return json_response(cat(
      "{\"count\":", ids->size(), ",\"max_model_len\":", model.max_model_len, ",\"tokens\":[", list,
      "],\"token_strs\":", strings->value_or(false) ? cat('[', texts, ']') : "null", '}'));
}

Result<HttpResponse, HttpError> detokenize(const Json& body, const ServedModel& model,
                                           const std::atomic<bool>&) {
  const auto tokens = body.find("tokens");
  const auto wrong = [] { return bad_field("tokens", "tokens must be a list of token ids"); };
  if (tokens == body.end() || !tokens->is_array()) return wrong();
  if (tokens->size() > kMaxIds)
    return bad_field("tokens", cat("tokens has more than ", kMaxIds, " entries"));
  std::vector<int32_t> ids;
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id < 0 || id >= model.tokenizer.vocab_size()) return wrong();
    ids.push_back(id.get<int32_t>());
  }
  return json_response(
      cat("{\"prompt\":\"", json_escape(model.tokenizer.decode(ids, false)), "\"}"));
}

class TextExchange final : public BodyExchange {
 public:
  using Work = Result<HttpResponse, HttpError> (*)(const Json& body, const ServedModel& model,
                                                   const std::atomic<bool>& given_up);

  TextExchange(std::shared_ptr<const HttpParts> parts, const HttpRequestHead& head, size_t length,
               Work to_do)
      : BodyExchange(std::move(parts), head, length), to_do_(to_do) {}

 protected:
  void stop() override { given_up_ = true; }
  void process(std::string body) override {
    Result<HttpResponse, HttpError> response = respond(body);
    // The answer may be longer than the request, and waits for its client.
    if (response.ok()) parts().intake->accepted(*this, response->body.size());
    answer(response.ok() ? std::move(response).value() : error_response(response.error()));
  }

 private:
  Result<HttpResponse, HttpError> respond(const std::string& text) const {
    const ServingState::View view = parts().state->view();
    if (view.model == nullptr) return to_http_error(model_is_loading());
    SHOAL_ASSIGN_OR_RETURN(const Json body, read_object(text));
    SHOAL_RETURN_IF_ERROR(check_model(body, *parts().state));
    return to_do_(body, *view.model, given_up_);
  }

  const Work to_do_;
  std::atomic<bool> given_up_ = false;
};

}  // namespace

std::shared_ptr<BodyExchange> make_tokenize(std::shared_ptr<const HttpParts> parts,
                                            const HttpRequestHead& head, size_t length) {
  return std::make_shared<TextExchange>(std::move(parts), head, length, tokenize);
}

std::shared_ptr<BodyExchange> make_detokenize(std::shared_ptr<const HttpParts> parts,
                                              const HttpRequestHead& head, size_t length) {
  return std::make_shared<TextExchange>(std::move(parts), head, length, detokenize);
}

}  // namespace shoal
