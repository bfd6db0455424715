#include "server/cli/command_io.h"
#include "server/commands/chat_prompt.h"
#include "server/commands/commands.h"

namespace shoal {
namespace {

Ending render(const RenderFlags& flags) {
  SHOAL_ASSIGN_OR_RETURN(const RenderedPrompt prompt,
                         render_chat_prompt(flags.chat, flags.model, Deadline::infinite()));
  if (!flags.ids) return at(Stage::kRequest, write_stdout(prompt.text));
  SHOAL_ASSIGN_OR_RETURN(const Tokenizer tokenizer,
                         at(Stage::kModel, Tokenizer::load(flags.model)));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         encode_chat_prompt(flags.chat, prompt, tokenizer));
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return at(Stage::kRequest, write_stdout(text + "\n"));
}

}  // namespace

int run_render(const RenderFlags& flags) {
  return report_failure(render(flags));
}

}  // namespace shoal
