#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/chat_template.h"
#include "server/cli/chat_flags.h"
#include "server/cli/exit_code.h"
#include "server/cli/flags.h"
#include "server/host/model_files.h"

namespace shoal {

/// Makes prompts of conversations with the template of a model, or with the one that the flags
/// name. Files and messages that cannot be used, and what the template refuses, are errors of the
/// request. A template that does not parse, or that is missing, is one of the model.
class ChatPrompts {
 public:
  /// ABORTED (Fault::kModelChanged): the model's files do not answer by the deadline.
  static Staged<ChatPrompts> open(const ChatFlags& flags, const std::string& model,
                                  Deadline deadline);
  Staged<RenderedPrompt> render(OrderedJson messages) const;

 private:
  ChatPrompts(ChatTemplate chat, OrderedJson kwargs, bool add_generation_prompt)
      : chat_(std::move(chat)),
        kwargs_(std::move(kwargs)),
        add_generation_prompt_(add_generation_prompt) {}

  ChatTemplate chat_;
  OrderedJson kwargs_;
  bool add_generation_prompt_;
};

/// The prompt of the messages in the file that the flags name. Errors: those of ChatPrompts.
/// Precondition: the flags have messages.
Staged<RenderedPrompt> render_chat_prompt(const ChatFlags& flags, const std::string& model,
                                          Deadline deadline);

/// The ids of such a prompt.
Staged<std::vector<int32_t>> encode_chat_prompt(const ChatFlags& flags,
                                                const RenderedPrompt& prompt,
                                                const Tokenizer& tokenizer);

/// Gives the model of a server its chat template. One that is missing or does not parse keeps
/// nothing from being served but chats: the log names it. INVALID_ARGUMENT: the file that the flag
/// names cannot be read. ABORTED (Fault::kModelChanged): the files do not answer.
Status add_chat_template(const ServeFlags& flags, const ModelFiles& files, ServedModel* model);

}  // namespace shoal
