#include <set>

#include "runtime/base/cat.h"
#include "server/cli/command_table.h"

namespace shoal {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

/// A fish condition that holds if the cursor is after this command.
std::string behind(const std::string& name) {
  const size_t space = name.find(' ');
  std::string condition = "__fish_seen_subcommand_from " + name.substr(0, space);
  if (space != std::string::npos)
    condition += "; and __fish_seen_subcommand_from " + name.substr(space + 1);
  return condition;
}

std::string flag_lines(const std::string& condition, const FlagEntry& entry) {
  std::string choices;
  for (const std::string& choice : entry.value.choices)
    choices += cat(choices.empty() ? "" : " ", choice);
  std::string lines;
  for (const std::string& name : entry.names) {
    const bool is_long = name.starts_with("--");
    lines += cat("complete -c shoal -n ", quoted(condition), is_long ? " -l " : " -s ",
                 name.substr(is_long ? 2 : 1));
    if (entry.takes_value) lines += entry.value.is_path ? " -r -F" : " -x";
    if (entry.takes_value && !choices.empty()) lines += " -a " + quoted(choices);
    lines += cat(" -d ", quoted(entry.help), "\n");
  }
  return lines;
}

/// Completes the words of a command. The first word is left out if an earlier command has the same
/// one.
std::string word_lines(const CommandEntry& command, const std::string& seconds,
                       std::set<std::string>* seen) {
  const size_t space = command.name.find(' ');
  const std::string first = command.name.substr(0, space);
  std::string lines;
  if (seen->insert(first).second) {
    lines += cat("complete -c shoal -n __fish_use_subcommand -a ", first);
    if (space == std::string::npos) lines += " -d " + quoted(command.summary);
    lines += "\n";
  }
  if (space != std::string::npos) {
    const std::string second = command.name.substr(space + 1);
    lines += cat("complete -c shoal -n ",
                 quoted(cat(behind(first), "; and not __fish_seen_subcommand_from", seconds)),
                 " -a ", second, " -d ", quoted(command.summary), "\n");
  }
  return lines;
}

}  // namespace

std::string fish_completion(const std::vector<CommandEntry>& commands) {
  std::string text =
      "# fish completion of shoal, made by shoal help --completion fish from the flags themselves.\n"
      "complete -c shoal -f\n"
      "complete -c shoal -n __fish_use_subcommand -a help -d 'print the commands, the man page or a completion "
      "script'\n"
      "complete -c shoal -n __fish_use_subcommand -l version -d 'what this program was built from'\n"
      "complete -c shoal -n '__fish_seen_subcommand_from help' -l man -d 'print shoal.1'\n"
      "complete -c shoal -n '__fish_seen_subcommand_from help' -l json -d 'print the flags as JSON'\n"
      "complete -c shoal -n '__fish_seen_subcommand_from help' -l completion -x -a 'bash zsh fish'\n";
  std::set<std::string> seen;
  std::string seconds;
  for (const CommandEntry& command : commands) {
    const size_t space = command.name.find(' ');
    if (space != std::string::npos) seconds += command.name.substr(space);
  }
  for (const CommandEntry& command : commands) {
    text += word_lines(command, seconds, &seen);
    // Offer files, because the operand is a model or the words after --.
    if (command.operand != Operand::kNone)
      text += cat("complete -c shoal -n ", quoted(behind(command.name)), " -F\n");
    for (const FlagGroup& group : command.groups) {
      for (const FlagEntry& entry : group.flags) text += flag_lines(behind(command.name), entry);
    }
  }
  return text;
}

}  // namespace shoal
