#include "server/cli/chat_flags.h"

#include "server/cli/flag_setters.h"

namespace shoal {

void add_chat_flags(FlagParser& parser, ChatFlags* chat) {
  parser.add_value("--messages", path("FILE"),
                   "A JSON list of chat messages, which the chat template makes a prompt of; - is "
                   "stdin",
                   words_as_they_are(&chat->messages));
  parser.add_value("--chat-template", path("FILE"), "A Jinja2 chat template (the model's own)",
                   words_as_they_are(&chat->chat_template));
  parser.add_value("--chat-template-kwargs", "JSON",
                   "An object with more variables for the template, e.g. {\"tools\":[...]}",
                   words_as_they_are(&chat->kwargs));
  parser.add_switch("--no-generation-prompt",
                    "Do not end the prompt with the beginning of an answer",
                    &chat->no_generation_prompt);
  parser.add_switch("--trust-message-tokens",
                    "Read special tokens such as <|im_end|> also in what the messages say, so that "
                    "they can forge turns",
                    &chat->trust_message_tokens);
}

Status check_chat_flags(const ChatFlags& chat) {
  const bool any =
      chat.chat_template || chat.kwargs || chat.no_generation_prompt || chat.trust_message_tokens;
  if (chat.messages || !any) return {};
  return Status::error(
      Code::kInvalidArgument,
      "--chat-template, --chat-template-kwargs, --no-generation-prompt and "
      "--trust-message-tokens need --messages, --chat, or a line with messages in --jsonl");
}

void add_conversation_flag(FlagParser& parser, bool* converses) {
  parser.add_switch("--chat",
                    "Talk with the model: each line of stdin is a message, after those of "
                    "--messages. Ctrl-C stops an answer, Ctrl-D ends",
                    converses);
}

Status check_conversation(bool json, const std::optional<std::string>& messages) {
  if (json)
    return Status::error(Code::kInvalidArgument,
                         "--json is for one answer; give it with --messages FILE, without --chat");
  if (messages == "-")
    return Status::error(Code::kInvalidArgument,
                         "--messages - reads stdin, which --chat reads too; name a file");
  return {};
}

}  // namespace shoal
