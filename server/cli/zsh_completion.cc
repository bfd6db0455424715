#include "runtime/base/cat.h"
#include "server/cli/command_table.h"

namespace shoal {
namespace {

/// Text inside single quotes, escaped so that _arguments and _describe find nothing special in it.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out;
}

/// One specification for _arguments per name of the flag. They allow a flag to be given several
/// times.
std::string flag_specs(const FlagEntry& entry) {
  std::string value;
  if (entry.takes_value) {
    std::string choices;
    for (const std::string& choice : entry.value.choices)
      choices += cat(choices.empty() ? "" : " ", choice);
    const std::string action = !choices.empty()      ? cat("(", choices, ")")
                               : entry.value.is_path ? "_files"
                                                     : " ";
    value = cat(":", quoted(entry.value.label), ":", action);
  }
  std::string specs;
  for (const std::string& name : entry.names) {
    const bool equals = entry.takes_value && name.starts_with("--");
    specs +=
        cat("        '*", name, equals ? "=" : "", "[", quoted(entry.help), "]", value, "' \\\n");
  }
  return specs;
}

std::string command_case(const CommandEntry& command) {
  std::string specs;
  for (const FlagGroup& group : command.groups) {
    for (const FlagEntry& entry : group.flags) specs += flag_specs(entry);
  }
  switch (command.operand) {
    case Operand::kNone:
      break;
    case Operand::kModel:
    case Operand::kModelOrNone:
      specs += "        '*:MODEL:_files' \\\n";
      break;
    case Operand::kCommand:
      specs += "        '*::COMMAND:_normal' \\\n";
      break;
  }
  return cat("    '", command.name, "')\n      _arguments \\\n", specs,
             "        && return 0\n      ;;\n");
}

constexpr const char* kHead = R"(#compdef shoal
# zsh completion of shoal, made by shoal help --completion zsh from the flags themselves.

_shoal() {
  local command=$words[2]
  local -a commands benches
)";

constexpr const char* kMiddle = R"(  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  if [[ $command == bench ]]; then
    if (( CURRENT == 2 )); then
      _describe bench benches
      return
    fi
    command+=" $words[2]"
    shift words
    (( CURRENT-- ))
  fi
  case $command in
    help) _arguments '--man[print shoal.1]' '--json[print the flags as JSON]' '--completion=[print a completion script]:SHELL:(bash zsh fish)' ;;
    --version | version) _arguments '--json[print one JSON object]' ;;
)";

constexpr const char* kTail = R"(  esac
}

# Loaded by compinit this file is the function's body; sourced, it registers the function.
if [[ $funcstack[1] == _shoal ]]; then _shoal "$@"; else compdef _shoal shoal; fi
)";

}  // namespace

std::string zsh_completion(const std::vector<CommandEntry>& commands) {
  std::string firsts, benches, cases;
  for (const CommandEntry& command : commands) {
    const size_t space = command.name.find(' ');
    const std::string last = command.name.substr(space == std::string::npos ? 0 : space + 1);
    std::string& list = space == std::string::npos ? firsts : benches;
    list += cat(" '", last, ":", quoted(command.summary), "'");
    cases += command_case(command);
  }
  return cat(kHead, "  commands=(", firsts, " 'bench:time decoding, prefill or collectives'",
             " 'help:print the commands, the man page or a completion script')\n  benches=(",
             benches, ")\n", kMiddle, cases, kTail);
}

}  // namespace shoal
