#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "models/chat_template.h"
#include "server/cli/chat_flags.h"
#include "server/cli/exit_code.h"
#include "server/cli/flags.h"

namespace shoal {

/// The prompt that the template of `model`, or the one that the flags name, makes of the messages.
/// Files and messages that cannot be used, and what the template refuses, are errors of the
/// request. A template that does not parse, or that is missing, is one of the model.
/// Precondition: the flags have messages.
Staged<RenderedPrompt> render_chat_prompt(const ChatFlags& flags, const std::string& model);

/// The ids of such a prompt.
Staged<std::vector<int32_t>> encode_chat_prompt(const ChatFlags& flags,
                                                const RenderedPrompt& prompt,
                                                const Tokenizer& tokenizer);

/// Gives the model of a server its chat template. One that is missing or does not parse keeps
/// nothing from being served but chats: the log names it. INVALID_ARGUMENT: the file that the flag
/// names cannot be read.
Status add_chat_template(const ServeFlags& flags, ServedModel* model);

}  // namespace shoal
