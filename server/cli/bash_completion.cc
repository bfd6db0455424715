#include <algorithm>

#include "runtime/base/cat.h"
#include "server/cli/command_table.h"

namespace shoal {
namespace {

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

/// The `case` branch of one flag that takes a value. If the values cannot be listed it offers
/// nothing, because otherwise the shell would offer the other flags.
std::string value_case(const FlagEntry& entry) {
  const std::string names = cat("        ", joined(entry.names, " | "), ") ");
  if (!entry.value.choices.empty())
    return cat(names, "_shoal_words '", joined(entry.value.choices, " "), "'; return ;;\n");
  return cat(names, entry.value.is_path ? "_shoal_files; return ;;\n" : "return ;;\n");
}

std::string command_case(const CommandEntry& command) {
  std::string values;
  std::vector<std::string> flags;
  for (const FlagGroup& group : command.groups) {
    for (const FlagEntry& entry : group.flags) {
      flags.insert(flags.end(), entry.names.begin(), entry.names.end());
      if (entry.takes_value) values += value_case(entry);
    }
  }
  return cat("    '", command.name, "')\n      case $previous in\n", values,
             "      esac\n      flags='", joined(flags, " "), "'\n      operand=",
             command.operand == Operand::kModel || command.operand == Operand::kModelOrNone,
             "\n      ;;\n");
}

/// The first words of all commands, or the second words of those commands that start with `first`.
std::string words_after(const std::vector<CommandEntry>& commands, const std::string& first) {
  std::vector<std::string> words;
  for (const CommandEntry& command : commands) {
    const size_t space = command.name.find(' ');
    if (first.empty()) {
      words.push_back(command.name.substr(0, space));
    } else if (space != std::string::npos && command.name.substr(0, space) == first) {
      words.push_back(command.name.substr(space + 1));
    }
  }
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return joined(words, " ");
}

constexpr const char* kHead =
    R"(# bash completion of shoal, made by shoal help --completion bash from the flags themselves.

# _shoal_words WORDS: those that start with the current word. _shoal_files: the same of files.
_shoal_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current"); }
_shoal_files() {
  compopt -o filenames 2> /dev/null  # slashes after folders; refused outside a completion
  mapfile -t COMPREPLY < <(compgen -f -- "$current")
}

_shoal() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} flags operand i
  COMPREPLY=()
  # The = of --flag=value is a word of its own here.
  if [[ $current == = ]]; then
    current=
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)";

constexpr const char* kTail = R"(    *) return ;;
  esac
  if [[ $current == -* || $operand == 0 ]]; then
    _shoal_words "$flags"
  else
    _shoal_files
  fi
}
complete -F _shoal shoal
)";

}  // namespace

std::string bash_completion(const std::vector<CommandEntry>& commands) {
  std::string text = cat(kHead, "  if ((COMP_CWORD == 1)); then\n    _shoal_words '",
                         words_after(commands, ""), " help --help --version'\n    return\n  fi\n");
  text += cat(
      "  if [[ $command == bench ]]; then\n    if ((COMP_CWORD == 2)); then\n      _shoal_words '",
      words_after(commands, "bench"),
      "'\n      return\n    fi\n    command+=\" ${COMP_WORDS[2]}\"\n  fi\n");
  text +=
      "  # What follows -- is another program's.\n"
      "  for ((i = 2; i < COMP_CWORD; ++i)); do\n"
      "    [[ ${COMP_WORDS[i]} != -- ]] || { _shoal_files; return; }\n"
      "  done\n"
      "  case $command in\n"
      "    help) [[ $previous == --completion ]] && _shoal_words 'bash zsh fish' ||"
      " _shoal_words '--man --json --completion'; return ;;\n"
      "    --version | version) _shoal_words '--json'; return ;;\n";
  for (const CommandEntry& command : commands) text += command_case(command);
  return text + kTail;
}

}  // namespace shoal
