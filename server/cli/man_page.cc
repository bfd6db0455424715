#include "runtime/base/cat.h"
#include "server/cli/command_table.h"
#include "server/cli/exit_code.h"

namespace shoal {
namespace {

/// Text that troff shows unchanged. A line may be broken after a comma, because otherwise a long
/// list of transports would not fit. A hyphen in a flag must be written \-, because otherwise
/// copying it from the page gives another character. A dot or quote at the start of a line must be
/// escaped, because otherwise troff reads it as a request.
std::string roff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    line_start = c == '\n';
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
      if (c == ',') out += "\\:";
    }
  }
  return out;
}

std::string bold(std::string_view text) {
  return cat("\\fB", roff(text), "\\fR");
}

std::string italic(std::string_view text) {
  return cat("\\fI", roff(text), "\\fR");
}

std::string usage(const CommandEntry& command) {
  const std::string operand = operand_text(command.operand);
  return cat(bold("shoal " + command.name), operand.empty() ? "" : " ",
             operand.empty() ? "" : italic(operand));
}

/// If the operand is another program's command line it must come last, so the flags come before it.
std::string synopsis(const CommandEntry& command) {
  const std::string flags = cat("[", italic("FLAGS"), "]");
  if (command.operand != Operand::kCommand) return cat(usage(command), " ", flags, "\n");
  return cat(bold("shoal " + command.name), " ", flags, " ", italic(operand_text(command.operand)),
             "\n");
}

std::string flag(const FlagEntry& entry) {
  std::string names;
  for (const std::string& name : entry.names) names += cat(names.empty() ? "" : ", ", bold(name));
  if (entry.takes_value) names += " " + italic(entry.value.label);
  return cat(".TP\n", names, "\n", roff(entry.help), "\n");
}

std::string section(const CommandEntry& command) {
  std::string text = cat(".SS \"", usage(command), "\"\n", roff(command.description), "\n");
  for (const FlagGroup& group : command.groups) {
    text += cat(".PP\n", italic(group.heading), "\n");
    for (const FlagEntry& entry : group.flags) text += flag(entry);
  }
  if (!command.examples.empty()) text += cat(".PP\n", italic("Examples"), "\n");
  for (const Example& example : command.examples)
    text += cat(".TP\n", bold("shoal " + example.words), "\n", roff(example.what), "\n");
  return text;
}

}  // namespace

std::string man_page(const std::vector<CommandEntry>& commands) {
  std::string text = cat(
      ".\\\" Made by shoal help --man from the flags themselves.\n"
      ".TH SHOAL 1 \"\" \"shoal ",
      SHOAL_VERSION,
      "\" \"User Commands\"\n.nh\n.ad l\n"
      ".SH NAME\nshoal \\- tensor\\-parallel inference server for language models\n.SH SYNOPSIS\n.nf\n");
  for (const CommandEntry& command : commands) text += synopsis(command);
  text += cat(bold("shoal --version"), " [", bold("--json"), "]\n", bold("shoal help"), " [",
              italic("COMMAND"), " | ", bold("--man"), " | ", bold("--json"), " | ",
              bold("--completion"), " ", italic("SHELL"), "]\n.fi\n");
  text += cat(
      ".SH DESCRIPTION\n",
      roff(
          "Shoal serves a language model over several ranks (processes that share each layer) on one host. It "
          "starts in the shared memory that there is, and says what that cost.\n"),
      ".PP\n",
      roff(
          "A flag's value follows it as the next word or after an equals sign. An underscore in a flag's name "
          "counts as a hyphen. -tp is short for --tensor-parallel-size. A default is given in parentheses.\n"),
      ".SH COMMANDS\n");
  for (const CommandEntry& command : commands) text += section(command);
  text += cat(
      ".SH SIGNALS\n",
      roff(
          "SIGTERM, SIGINT and SIGQUIT let running requests of serve finish, and so does SIGHUP if it has "
          "a controlling terminal; otherwise it is a line in the log, and certificates and keys are read "
          "again if they have changed. A second signal ends it "
          "at once. What was ignored when it was started stays ignored.\n"));
  text += ".SH EXIT STATUS\n";
  for (const ExitEntry& entry : kExitEntries)
    text += cat(".TP\n", bold(cat(entry.code)), "\n", roff(entry.meaning), "\n");
  return text;
}

}  // namespace shoal
