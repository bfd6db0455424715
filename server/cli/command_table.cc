#include "server/cli/command_table.h"

#include <algorithm>

#include "runtime/base/cat.h"
#include "server/cli/exit_code.h"

namespace shoal {
namespace {

constexpr size_t kHelpColumns = 100;

/// Breaks the text into lines of at most kHelpColumns.
std::string wrapped(const std::string& text) {
  std::string out, line;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > kHelpColumns) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return out + line + "\n";
}

}  // namespace

ValueForm one_of(std::vector<std::string> choices, std::string label) {
  ValueForm form("");
  if (label.empty()) {
    for (const std::string& choice : choices) label += (label.empty() ? "" : "|") + choice;
  }
  form.label = std::move(label);
  form.choices = std::move(choices);
  return form;
}

ValueForm path(const char* label) {
  ValueForm form(label);
  form.is_path = true;
  return form;
}

std::string operand_text(Operand operand) {
  switch (operand) {
    case Operand::kNone:
      return "";
    case Operand::kModel:
      return "MODEL";
    case Operand::kCommand:
      return "-- COMMAND";
  }
  return "";
}

std::string help_text(const std::vector<CommandEntry>& commands) {
  const auto usage = [](const CommandEntry& command) {
    return command.name + (command.operand == Operand::kNone ? "" : " ") +
           operand_text(command.operand);
  };
  size_t width = 0;
  for (const CommandEntry& command : commands) width = std::max(width, usage(command).size());
  std::string text =
      "Shoal: a small tensor-parallel inference server for language models.\n\n"
      "Usage: shoal COMMAND ... (shoal COMMAND --help lists its flags)\n\n";
  for (const CommandEntry& command : commands) {
    std::string line = usage(command);
    line.resize(width, ' ');
    text += cat("  ", line, "  ", command.summary, "\n");
  }
  text +=
      "\n  shoal --version [--json], shoal --help\n"
      "  shoal help --man, shoal help --completion bash|zsh|fish\n\n";
  std::string codes;
  for (const ExitEntry& entry : kExitEntries)
    codes += cat(codes.empty() ? "" : "; ", entry.code, " ", entry.meaning);
  return text + wrapped(cat("Exit codes: ", codes, "."));
}

}  // namespace shoal
