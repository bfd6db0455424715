#include "server/http/api_answer.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"

namespace shoal {

namespace {

std::string in_quotes(std::string_view text) {
  return cat('"', json_escape(text), '"');
}

template <typename Items, typename Write>
std::string json_list(const Items& items, const Write& write) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ',';
    text += write(item);
  }
  return text + "]";
}

/// Adds an item to a list.
void add(const std::string& item, std::string* list) {
  if (!list->empty()) *list += ',';
  *list += item;
}

std::string finish_reason(const OutputEnd& end) {
  switch (end.finish.reason) {
    case FinishReason::kStop:
      return "\"stop\"";
    case FinishReason::kLength:
      return "\"length\"";
    case FinishReason::kCancelled:
      return "\"abort\"";
  }
  return "null";
}

/// What stopped the answer: a stop string, the id of a stop token, or null.
std::string stop_reason(const OutputEnd& end) {
  if (end.finish.reason != FinishReason::kStop) return "null";
  if (!end.stop_text.empty()) return in_quotes(end.stop_text);
  if (end.finish.stop_token_id < 0 || end.finish.stopped_by_eos) return "null";
  return cat(end.finish.stop_token_id);
}

std::string usage_json(int64_t prompt, int64_t output) {
  return cat("{\"prompt_tokens\":", prompt, ",\"completion_tokens\":", output,
             ",\"total_tokens\":", prompt + output, '}');
}

std::string usage_of(const std::vector<AnswerChoice>& choices) {
  int64_t prompt = 0;
  int64_t output = 0;
  for (const AnswerChoice& choice : choices) {
    prompt += choice.prompt_tokens;
    output += choice.output_tokens;
  }
  return usage_json(prompt, output);
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::string AnswerWriter::token_text(int32_t id) const {
  return tokenizer_.decode(std::span(&id, 1), false);
}

/// The legacy form of /v1/completions: lists that run side by side.
void AnswerWriter::take_completion_token(const SampledToken& token, AnswerChoice& choice) const {
  const std::string text = token_text(token.token_id);
  TokenLists& lists = choice.lists;
  add(cat(choice.characters), &lists.offsets);
  choice.characters += count_characters(text);
  add(json_float(token.logprob), &lists.logprobs);
  add(in_quotes(text), &lists.tokens);
  std::string best;
  for (const TokenLogprob& one : token.top)
    add(cat(in_quotes(token_text(one.token_id)), ':', json_float(one.logprob)), &best);
  add(cat('{', best, '}'), &lists.top);
}

std::string AnswerWriter::candidate(const TokenLogprob& candidate) const {
  const std::string text = token_text(candidate.token_id);
  const std::string bytes =
      json_list(text, [](char c) { return cat(static_cast<int>(static_cast<unsigned char>(c))); });
  return cat("\"token\":", in_quotes(text), ",\"logprob\":", json_float(candidate.logprob),
             ",\"bytes\":", bytes);
}

void AnswerWriter::take_chat_token(const SampledToken& token, AnswerChoice& choice) const {
  std::string top;
  for (const TokenLogprob& one : token.top) add(cat('{', candidate(one), '}'), &top);
  add(cat('{', candidate({token.token_id, token.logprob}), ",\"top_logprobs\":[", top, "]}"),
      &choice.lists.content);
}

void AnswerWriter::take_tokens(AnswerChoice& choice) const {
  for (const SampledToken& token : choice.tokens) {
    if (head_.token_ids) add(cat(token.token_id), &choice.lists.ids);
    if (!head_.logprobs) continue;
    if (head_.route == ApiRoute::kChat) {
      take_chat_token(token, choice);
    } else {
      take_completion_token(token, choice);
    }
  }
  choice.tokens.clear();
}

std::string AnswerWriter::logprobs_json(const AnswerChoice& choice) const {
  const TokenLists& lists = choice.lists;
  if (head_.route == ApiRoute::kChat) return cat("{\"content\":[", lists.content, "]}");
  return cat("{\"text_offset\":[", lists.offsets, "],\"token_logprobs\":[", lists.logprobs,
             "],\"tokens\":[", lists.tokens, "],\"top_logprobs\":[", lists.top, "]}");
}

std::string AnswerWriter::choice_json(AnswerChoice& choice, bool streamed, bool with_end) const {
  const bool chat = head_.route == ApiRoute::kChat;
  std::string text = in_quotes(choice.text);
  if (chat && !streamed) {
    text = cat("\"message\":{\"role\":\"assistant\",\"content\":", text, "}");
  } else if (chat) {
    const char* role = choice.begun ? "" : "\"role\":\"assistant\",";
    text = with_end ? "\"delta\":{}" : cat("\"delta\":{", role, "\"content\":", text, "}");
  } else {
    text = cat("\"text\":", text);
  }
  take_tokens(choice);
  const bool has_logprobs = !choice.lists.logprobs.empty() || !choice.lists.content.empty();
  const std::string logprobs =
      head_.logprobs && (has_logprobs || !streamed) ? logprobs_json(choice) : "null";
  std::string json = cat("{\"index\":", choice.index, ',', text, ",\"logprobs\":", logprobs,
                         ",\"finish_reason\":", with_end ? finish_reason(choice.end) : "null",
                         ",\"stop_reason\":", with_end ? stop_reason(choice.end) : "null");
  if (head_.token_ids) {
    if (!choice.begun) {
      json += cat(",\"prompt_token_ids\":",
                  json_list(choice.prompt_ids, [](int32_t id) { return cat(id); }));
    }
    json += cat(",\"token_ids\":[", choice.lists.ids, ']');
  }
  choice.begun = true;
  choice.text.clear();
  choice.lists = {};
  return json + "}";
}

std::string AnswerWriter::event(const std::string& choices, const std::string& usage) const {
  const char* object = head_.route == ApiRoute::kChat ? "chat.completion.chunk" : "text_completion";
  return cat("data: {\"id\":", in_quotes(head_.id), ",\"object\":\"", object,
             "\",\"created\":", head_.created, ",\"model\":", in_quotes(head_.model),
             ",\"choices\":[", choices, "],\"system_fingerprint\":", in_quotes(head_.fingerprint),
             usage.empty() ? "" : cat(",\"usage\":", usage), "}\n\n");
}

std::string AnswerWriter::events(AnswerChoice& choice) const {
  const std::string usage =
      head_.continuous_usage ? usage_json(choice.prompt_tokens, choice.output_tokens) : "";
  std::string out;
  const bool tokens = !choice.tokens.empty() && (head_.logprobs || head_.token_ids);
  // Not before there is a token: until the head has gone, a refusal is still a status.
  const bool role =
      head_.route == ApiRoute::kChat && !choice.begun && (choice.output_tokens > 0 || choice.ended);
  if (role || tokens || !choice.text.empty()) out += event(choice_json(choice, true, false), usage);
  if (choice.ended) out += event(choice_json(choice, true, true), usage);
  return out;
}

std::string AnswerWriter::usage_event(const std::vector<AnswerChoice>& choices) const {
  return event("", usage_of(choices));
}

std::string AnswerWriter::whole(std::vector<AnswerChoice>& choices) const {
  const std::string usage = usage_of(choices);
  const std::string list = [&] {
    std::string text;
    for (AnswerChoice& choice : choices) {
      if (!text.empty()) text += ',';
      text += choice_json(choice, false, true);
    }
    return text;
  }();
  const char* object = head_.route == ApiRoute::kChat ? "chat.completion" : "text_completion";
  return cat("{\"id\":", in_quotes(head_.id), ",\"object\":\"", object,
             "\",\"created\":", head_.created, ",\"model\":", in_quotes(head_.model),
             ",\"choices\":[", list, "],\"system_fingerprint\":", in_quotes(head_.fingerprint),
             ",\"usage\":", usage, '}');
}

}  // namespace shoal
