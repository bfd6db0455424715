#include "server/commands/chat_prompt.h"

#include <ctime>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "server/cli/command_io.h"
#include "server/host/read_in_time.h"

namespace shoal {

namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

Result<ChatTemplate> load_template(const std::string& model, const std::optional<std::string>& file,
                                   Deadline deadline) {
  return read_in_time<ChatTemplate>(cat("the chat template of MODEL ", model), deadline,
                                    [model, file] { return ChatTemplate::load(model, file); });
}

}  // namespace

Staged<ChatPrompts> ChatPrompts::open(const ChatFlags& flags, const std::string& model,
                                      Deadline deadline) {
  OrderedJson kwargs;
  if (flags.kwargs) {
    SHOAL_ASSIGN_OR_RETURN(
        kwargs, at(Stage::kRequest, parse_ordered_json(*flags.kwargs, "--chat-template-kwargs")));
  }
  if (flags.chat_template) {
    // Only whether it can be read, because the flag is to blame if not.
    const Status readable = read_file(*flags.chat_template, kMaxTemplateBytes).status();
    if (!readable.ok())
      return at(Stage::kRequest,
                readable.because_of(Code::kInvalidArgument, "--chat-template cannot be read"));
  }
  SHOAL_ASSIGN_OR_RETURN(ChatTemplate chat,
                         at(Stage::kModel, load_template(model, flags.chat_template, deadline)));
  return ChatPrompts(std::move(chat), std::move(kwargs), !flags.no_generation_prompt);
}

Staged<RenderedPrompt> ChatPrompts::render(OrderedJson messages) const {
  const ChatRequest request{std::move(messages), kwargs_, add_generation_prompt_};
  Result<RenderedPrompt, RenderError> prompt = chat_.render(request, {.now_s = std::time(nullptr)});
  if (!prompt.ok()) return at(Stage::kRequest, prompt.error().status);
  return std::move(prompt).value();
}

Staged<RenderedPrompt> render_chat_prompt(const ChatFlags& flags, const std::string& model,
                                          Deadline deadline) {
  SHOAL_ASSIGN_OR_RETURN(
      const std::string text,
      at(Stage::kRequest, read_input("--messages", *flags.messages, kMaxInputBytes)));
  SHOAL_ASSIGN_OR_RETURN(
      OrderedJson messages,
      at(Stage::kRequest, parse_ordered_json(text, "--messages " + *flags.messages)));
  SHOAL_ASSIGN_OR_RETURN(const ChatPrompts prompts, ChatPrompts::open(flags, model, deadline));
  return prompts.render(std::move(messages));
}

Staged<std::vector<int32_t>> encode_chat_prompt(const ChatFlags& flags,
                                                const RenderedPrompt& prompt,
                                                const Tokenizer& tokenizer) {
  return at(Stage::kRequest, encode_prompt(tokenizer, prompt, flags.trust_message_tokens));
}

Status add_chat_template(const ServeFlags& flags, const ModelFiles& files, ServedModel* model) {
  model->trust_message_tokens = flags.trust_message_tokens;
  if (flags.chat_template) {
    // Only whether it can be read, because the flag is to blame if not.
    const Status readable = read_file(*flags.chat_template, kMaxTemplateBytes).status();
    if (!readable.ok())
      return readable.because_of(Code::kInvalidArgument, "--chat-template cannot be read");
  }
  Result<ChatTemplate> chat = load_template(files.dir, flags.chat_template, files.start_by);
  if (chat.ok()) {
    model->chat = std::make_shared<const ChatTemplate>(std::move(chat).value());
    return {};
  }
  if (chat.status().fault() == Fault::kModelChanged) return chat.status();
  const bool missing = chat.status().code() == Code::kFailedPrecondition;
  model->no_chat = missing
                       ? "this model has no chat template: use /v1/completions, or start the "
                         "server with --chat-template FILE"
                       : cat("the model's chat template cannot be used: ", chat.status().message(),
                             "; use /v1/completions");
  if (!missing)
    log_warning(cat("no chats, because the template cannot be used: ", explained(chat.status())));
  return {};
}

}  // namespace shoal
