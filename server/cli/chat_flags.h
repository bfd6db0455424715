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

/// INVALID_ARGUMENT: a flag about the template was given without --messages.
Status check_chat_flags(const ChatFlags& chat);

}  // namespace shoal
