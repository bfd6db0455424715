#include "server/http/generate_exchange.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <utility>

namespace shoal {

namespace {

const char* id_prefix(ApiRoute route) {
  return route == ApiRoute::kChat ? "chatcmpl-" : "cmpl-";
}

/// The id of the request for one choice. The only choice has the client's own.
std::string choice_id(const std::string& id, size_t index, size_t choices) {
  return choices == 1 ? id : cat(id, '-', index);
}

/// About how long the answer may become.
size_t answer_bytes(const ApiRequest& request, const ServedModel& model) {
  size_t bytes = 0;
  for (const GenerationRequest& one : request.prompts) bytes += most_answer_bytes(one, model);
  return bytes;
}

void take_earlier(const std::optional<double>& time, std::optional<double>* earliest) {
  if (time && (!*earliest || *time < **earliest)) *earliest = time;
}

}  // namespace

struct GenerateExchange::Running {
  Running(AnswerHead head, const Tokenizer& tokenizer) : writer(std::move(head), tokenizer) {}

  const AnswerWriter writer;
  std::string id;
  bool stream = false;
  bool include_usage = false;
  std::string ignored;  // the header's value; empty: none
  std::vector<std::shared_ptr<LiveRequest>> requests;
  std::vector<AnswerChoice> choices;
  std::atomic<bool> submitted =
      false;              // all of them; from then on only the event thread uses the rest
  bool begun = false;     // the head of a stream has been written
  bool finished = false;  // the last part has been taken
  HttpError failed;

  bool ended() const {
    return std::all_of(choices.begin(), choices.end(),
                       [](const AnswerChoice& choice) { return choice.ended; });
  }
};

GenerateExchange::GenerateExchange(std::shared_ptr<const HttpParts> parts,
                                   const HttpRequestHead& head, size_t length, ApiRoute route)
    : BodyExchange(std::move(parts), head, length), route_(route), header_id_(head.request_id) {}

GenerateExchange::~GenerateExchange() = default;

void GenerateExchange::process(std::string body) {
  Result<ApiRequest, HttpError> request = read_api_request(body, route_);
  body = {};
  HttpError error = request.ok() ? submit(std::move(request).value()) : request.error();
  if (!error.ok()) answer(error_response(error));
}

/// Checks what needs the model, and makes a prompt of a conversation.
HttpError GenerateExchange::prepare(ApiRequest& request, const ServedModel& model) const {
  if (!request.stream && answer_bytes(request, model) > kMaxAnswerBytes)
    return bad_field(request.prompts.front().logprobs ? "logprobs" : "max_tokens",
                     "an answer that may become this long is not kept whole: ask for a stream, or "
                     "for fewer prompts, tokens or logprobs");
  if (const Status status = parts().state->check_model(request.model); !status.ok())
    return {404, explain(status), "model", "model_not_found"};
  return route_ == ApiRoute::kChat ? render_chat(request, model) : HttpError{};
}

HttpError GenerateExchange::render_chat(ApiRequest& request, const ServedModel& model) const {
  if (model.chat == nullptr) return {400, model.no_chat, "messages", "NO_CHAT_TEMPLATE"};
  const ChatRequest chat{.messages = std::move(request.messages),
                         .kwargs = std::move(request.template_kwargs),
                         .add_generation_prompt = request.generation_prompt};
  const Result<RenderedPrompt, RenderError> prompt =
      model.chat->render(chat, {.given_up = &given_up_, .now_s = std::time(nullptr)});
  if (!prompt.ok()) return to_http_error(prompt.error());
  const Result<std::vector<int32_t>> ids =
      encode_prompt(model.tokenizer, *prompt, model.trust_message_tokens,
                    {.max_ids = static_cast<size_t>(model.max_model_len), .given_up = &given_up_});
  if (!ids.ok()) return bad_field("messages", explain(ids.status()));
  request.prompts.front().prompt_ids.emplace(ids->begin(), ids->end());
  return {};
}

std::unique_ptr<GenerateExchange::Running> GenerateExchange::make_running(
    const ApiRequest& request, const ServedModel& model) {
  // A proxy may give several calls one x-request-id, so that it does not name the request.
  const std::string id = request.id.empty() ? make_uuid() : request.id;
  AnswerHead head{.route = route_,
                  .id = id_prefix(route_) + id,
                  .model = request.model.empty() ? parts().state->served_name() : request.model,
                  .fingerprint = parts().state->view().deployment.fingerprint,
                  .created = std::time(nullptr),
                  .logprobs = request.prompts.front().logprobs.has_value(),
                  .token_ids = request.token_ids,
                  .continuous_usage = request.continuous_usage};
  auto running = std::make_unique<Running>(std::move(head), model.tokenizer);
  running->id = id;
  running->stream = request.stream;
  running->include_usage = request.include_usage;
  running->ignored = ignored_fields_header(request.ignored);
  const size_t choices = request.prompts.size();
  const auto self = std::static_pointer_cast<GenerateExchange>(shared_from_this());
  for (size_t i = 0; i < choices; ++i) {
    running->choices.push_back({.index = static_cast<int>(i)});
    running->requests.push_back(LiveRequest::make(parts().intake, choice_id(id, i, choices), self));
  }
  return running;
}

/// The requests are known before they are submitted, so that a client that leaves ends the
/// tokenizing too. Output may come before the last one is submitted; it waits.
HttpError GenerateExchange::submit(ApiRequest request) {
  const ServingState::View view = parts().state->view();
  if (view.model == nullptr) return to_http_error(model_is_loading());
  if (HttpError error = prepare(request, *view.model); !error.ok()) return error;
  const size_t kept = request.stream ? 0 : answer_bytes(request, *view.model);
  if (const RefusedRequest refused = parts().intake->keep_answer(*this, kept); !refused.ok())
    return to_http_error(refused);
  owned_ = make_running(request, *view.model);
  Running* const running = owned_.get();
  running_ = running;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    if (given_up_) running->requests[i]->give_up();
    Result<LiveRequest::Accepted, RefusedRequest> accepted =
        running->requests[i]->submit(std::move(request.prompts[i]), origin());
    if (!accepted.ok()) {
      for (const auto& one : running->requests) {
        one->give_up();
        one->release_id();
      }
      HttpError error = to_http_error(accepted.error());
      // The ids come from the conversation.
      if (route_ == ApiRoute::kChat && error.param == "prompt") error.param = "messages";
      return error;
    }
    running->choices[i].prompt_tokens = static_cast<int32_t>(accepted->prompt_ids.size());
    if (request.token_ids) running->choices[i].prompt_ids = std::move(accepted->prompt_ids);
  }
  running->submitted = true;
  wake();
  return {};
}

void GenerateExchange::stop() {
  given_up_ = true;
  if (Running* const running = running_)
    for (const auto& request : running->requests) request->give_up();
}

/// Moves what the requests have produced to the choices.
void GenerateExchange::collect(Running& running) {
  for (size_t i = 0; i < running.requests.size(); ++i) {
    AnswerChoice& choice = running.choices[i];
    LiveRequest::Output output = running.requests[i]->take();
    for (OutputDelta& delta : output.deltas) {
      choice.text += delta.text;
      choice.output_tokens += static_cast<int32_t>(delta.tokens.size());
      std::move(delta.tokens.begin(), delta.tokens.end(), std::back_inserter(choice.tokens));
    }
    if (!output.end) continue;
    choice.ended = true;
    choice.end = std::move(*output.end);
  }
  if (running.stream) return;
  for (AnswerChoice& choice : running.choices) running.writer.take_tokens(choice);
}

void GenerateExchange::add_headers(const Running& running, HttpResponse* head) const {
  if (!running.ignored.empty())
    head->headers.emplace_back("x-shoal-ignored-fields", running.ignored);
  // The connection returns the client's own.
  if (header_id_.empty()) head->headers.emplace_back("x-request-id", running.id);
}

HttpPart GenerateExchange::stream_head(const Running& running) const {
  HttpResponse head{.content_type = "text/event-stream; charset=utf-8",
                    .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
                    .body = {}};
  add_headers(running, &head);
  return {.head = std::move(head), .has_head = true, .stream = true};
}

/// Ends the answer with an error, and the other choices with it.
HttpPart GenerateExchange::fail(Running& running, const HttpError& error) {
  running.finished = true;
  for (const auto& request : running.requests) {
    request->release_id();
    request->give_up();
  }
  if (!running.begun) return {.head = error_response(error), .has_head = true, .last = true};
  return {
      .stream = true, .bytes = cat("data: ", error_json(error), "\n\n", kDoneEvent), .last = true};
}

HttpPart GenerateExchange::late() {
  Running* const running = running_;
  if (running && running->submitted) return fail(*running, too_late());
  // Those that are submitted already have been given up. Their ids are free before the client
  // knows.
  if (running)
    for (const auto& request : running->requests) request->release_id();
  return BodyExchange::late();
}

std::optional<HttpPart> GenerateExchange::more() {
  Running* const running = running_;
  if (!running || !running->submitted || running->finished) return std::nullopt;
  collect(*running);
  const bool draining = parts().state->draining();
  for (const AnswerChoice& choice : running->choices) {
    if (choice.ended && !choice.end.status.ok())
      return fail(*running, to_http_error(choice.end, draining));
  }
  if (running->ended())
    for (const auto& request : running->requests) request->release_id();
  if (running->stream) return stream_part(*running);
  if (!running->ended()) return std::nullopt;
  running->finished = true;
  HttpPart part{.has_head = true, .last = true};
  part.head.body = running->writer.whole(running->choices);
  add_headers(*running, &part.head);
  return part;
}

std::optional<HttpPart> GenerateExchange::stream_part(Running& running) {
  std::string events;
  for (AnswerChoice& choice : running.choices) {
    if (choice.written) continue;
    events += running.writer.events(choice);
    choice.written = choice.ended;
  }
  const bool last = running.ended();
  if (last && running.include_usage) events += running.writer.usage_event(running.choices);
  if (last) events += kDoneEvent;
  if (events.empty()) return std::nullopt;
  HttpPart part = running.begun ? HttpPart{.stream = true} : stream_head(running);
  running.begun = true;
  running.finished = last;
  part.bytes = std::move(events);
  part.last = last;
  return part;
}

std::optional<HttpPart> GenerateExchange::keep_alive() {
  Running* const running = running_;
  if (!running || !running->submitted || !running->stream || running->finished) return std::nullopt;
  HttpPart part = running->begun ? HttpPart{.stream = true} : stream_head(*running);
  running->begun = true;
  part.bytes = ": waiting\n\n";
  return part;
}

CallSummary GenerateExchange::summary() const {
  Running* const running = running_;
  if (!running) return {.request_id = header_id_};
  CallSummary summary{.request_id = header_id_.empty() ? running->id : header_id_};
  if (!running->submitted) return summary;
  summary.finish = running->choices.front().end.how;
  for (const AnswerChoice& choice : running->choices) {
    summary.prompt_tokens += choice.prompt_tokens;
    summary.output_tokens += choice.output_tokens;
    if (choice.end.how != summary.finish) summary.finish = std::nullopt;
    take_earlier(choice.end.queue_s, &summary.queue_s);
    take_earlier(choice.end.first_token_s, &summary.first_token_s);
  }
  return summary;
}

size_t GenerateExchange::unread_bytes() const {
  Running* const running = running_;
  // Before all are submitted nothing may be written, so that it is not the client that is slow.
  if (!running || !running->submitted || !running->stream) return 0;
  size_t bytes = 0;
  for (const auto& request : running->requests) bytes += request->untaken_bytes();
  return bytes;
}

}  // namespace shoal
