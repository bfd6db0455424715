#pragma once
#include <optional>
#include <string>

#include "server/cli/flag_parser.h"

namespace shoal {

/// Flags about a conversation and the template that makes a prompt of it.
struct ChatFlags {
  std::optional<std::string> messages;  ///< a file with a JSON list of messages
  std::optional<std::string> chat_template;
  std::optional<std::string> kwargs;  ///< a JSON object, not parsed yet
  bool no_generation_prompt = false;
  bool trust_message_tokens = false;
};

void add_chat_flags(FlagParser& parser, ChatFlags* chat);

/// INVALID_ARGUMENT: a flag about the template was given, but there are no messages.
Status check_chat_flags(const ChatFlags& chat);

/// --chat, which makes a command a conversation on stdin.
void add_conversation_flag(FlagParser& parser, bool* converses);

/// INVALID_ARGUMENT: a conversation cannot have --json, or these --messages because they are stdin.
Status check_conversation(bool json, const std::optional<std::string>& messages);

}  // namespace shoal
