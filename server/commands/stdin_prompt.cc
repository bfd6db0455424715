#include "server/commands/stdin_prompt.h"

#include <string>
#include <unistd.h>

#include "runtime/base/terminal.h"
#include "server/cli/command_io.h"

namespace shoal {

Status take_stdin_prompt(const char* command, const char* inputs, bool other_input,
                         GenerationRequest* request) {
  const bool asked = request->prompt == "-";
  if (!asked && (other_input || request->prompt || request->prompt_ids)) return {};
  if (!asked && is_terminal(STDIN_FILENO))
    return Status::error(Code::kInvalidArgument,
                         cat(command, " needs one of ", inputs, ", or a prompt on stdin"));
  SHOAL_ASSIGN_OR_RETURN(std::string text, read_input("--prompt", "-", kMaxInputBytes));
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (text.empty())
    return Status::error(Code::kInvalidArgument, cat(command, " needs one of ", inputs,
                                                     ", or a prompt on stdin, which is "
                                                     "empty"));
  request->prompt = std::move(text);
  return {};
}

}  // namespace shoal
