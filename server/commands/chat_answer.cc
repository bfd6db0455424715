#include "server/commands/chat_answer.h"

#include "runtime/base/text_values.h"
#include "server/http/http_error.h"

namespace shoal {

namespace {

/// A server's words on one line, without what a terminal would obey.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  return text;
}

constexpr size_t kMostLine = size_t{64} << 20;
constexpr std::string_view kData = "data:";

/// A member of an object, or null if there is none.
const Json& member(const Json& object, const char* key) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

std::string text_of(const Json& json) {
  return json.is_string() ? json.get<std::string>() : std::string();
}

void append(const Json& list, Json* target) {
  if (!list.is_array()) return;
  for (const Json& one : list) target->push_back(one);
}

int64_t number_of_tokens(const Json& json) {
  return json.is_number_integer() ? json.get<int64_t>() : 0;
}

/// The message of OpenAI's error object.
std::string message_of(const Json& event) {
  const Json& error = member(event, "error");
  const std::string message = text_of(member(error, "message"));
  return message.empty() ? text_of(error) : message;
}

std::string code_of(const Json& event) {
  return text_of(member(member(event, "error"), "code"));
}

}  // namespace

void ChatAnswer::take_choice(const Json& choice, std::string* text) {
  const std::string piece = text_of(member(member(choice, "delta"), "content"));
  if (!piece.empty()) {
    last_s_ = seconds_since(started_);
    if (text_.empty()) first_s_ = last_s_;
    text_ += piece;
    *text += piece;
  }
  append(member(choice, "token_ids"), &token_ids_);
  append(member(member(choice, "logprobs"), "content"), &logprobs_);
  if (const std::string reason = text_of(member(choice, "finish_reason")); !reason.empty())
    finish_reason_ = reason;
}

Status ChatAnswer::take_event(const Json& event, std::string* text) {
  if (!event.is_object()) return Status::error(Code::kInternal, "an event is no JSON object");
  if (!member(event, "error").is_null()) {
    error_ = printable(message_of(event));
    if (error_.empty()) error_ = "the server does not say why";
    retryable_ = is_retryable(code_of(event));
    return {};
  }
  if (const std::string id = text_of(member(event, "id")); !id.empty()) id_ = id;
  const Json& choices = member(event, "choices");
  if (choices.is_array() && !choices.empty()) take_choice(choices[0], text);
  const Json& usage = member(event, "usage");
  if (usage.is_object()) {
    prompt_tokens_ = number_of_tokens(member(usage, "prompt_tokens"));
    output_tokens_ = number_of_tokens(member(usage, "completion_tokens"));
  }
  return {};
}

/// Comments and blank lines say nothing.
Status ChatAnswer::take_line(std::string_view line, std::string* text) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!line.starts_with(kData)) return {};
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line == "[DONE]") {
    done_ = true;
    return {};
  }
  SHOAL_ASSIGN_OR_RETURN(const Json event, parse_json(line, "an event of the answer"));
  return take_event(event, text);
}

Status ChatAnswer::take(int http_status, std::string_view bytes, std::string* text) {
  http_status_ = http_status;
  const size_t known = rest_.size();  // which has no end of a line in it
  rest_ += bytes;
  if (rest_.size() > kMostLine)
    return Status::error(Code::kInternal,
                         cat("a line of the answer has more than ", kMostLine, " B"));
  if (http_status != 200) return {};
  size_t begin = 0;
  for (size_t end = known; (end = rest_.find('\n', end)) != std::string::npos; begin = ++end) {
    const Status taken = take_line(rest_.substr(begin, end - begin), text);
    if (!taken.ok()) return taken.because_of(Code::kInternal, "the answer is not one of a chat");
  }
  rest_.erase(0, begin);
  return {};
}

std::string ChatAnswer::error() const {
  if (http_status_ == 200 || http_status_ == 0) return error_;
  const Result<Json> body = parse_json(rest_, "the error");
  const std::string message = body.ok() ? message_of(*body) : "";
  // Without a message it is not Shoal that answers, so show what it says.
  return cat(message.empty() ? shown(rest_) : printable(message), " (HTTP ", http_status_, ")");
}

std::optional<NotTaken> ChatAnswer::not_taken() const {
  if (http_status_ == 200 || http_status_ == 0) return std::nullopt;
  const Result<Json> body = parse_json(rest_, "the error");
  return body.ok() ? not_taken_of(code_of(*body)) : std::nullopt;
}

std::string ChatAnswer::json(bool with_logprobs) const {
  const Json object = {
      {"request_id", id_},
      {"token_ids", token_ids_},
      {"text", text_},
      {"finish_reason", finish_reason_},
      {"logprobs", with_logprobs ? logprobs_ : Json()},
      {"usage", {{"prompt_tokens", prompt_tokens_}, {"completion_tokens", output_tokens_}}}};
  return json_text(object) + "\n";
}

}  // namespace shoal
