#include "server/cli/help_text.h"

#include <algorithm>

#include "runtime/base/cat.h"
#include "server/cli/exit_code.h"
#include "server/cli/flag_parser.h"

namespace shoal {
namespace {

/// The widest left column, and its share of a narrow line.
constexpr size_t kMostLeft = 34;
constexpr size_t kLeftShare = 5, kLeftOf = 12;
constexpr size_t kIndent = 2;
/// From so many groups of flags on, the help is longer than a screen, and begins with their names.
constexpr size_t kManyGroups = 6;

/// A word that is wider than the line is broken after its commas, because it is a list.
std::vector<std::string> pieces_of(std::string word, size_t room) {
  std::vector<std::string> pieces;
  while (word.size() > room) {
    const size_t before = word.rfind(',', room - 1);
    const size_t comma = before == std::string::npos ? word.find(',') : before;
    if (comma == std::string::npos || comma + 1 == word.size()) break;
    pieces.push_back(word.substr(0, comma + 1));
    word.erase(0, comma + 1);
  }
  pieces.push_back(std::move(word));
  return pieces;
}

/// The text in lines of at most `columns` characters, each with a newline at its end. The first
/// line continues one that has `indent` characters already. The other lines are indented by
/// `indent` blanks.
std::string wrapped(std::string_view text, size_t indent, size_t columns) {
  const size_t room = columns > indent + kIndent ? columns - indent : kIndent;
  std::string out;
  size_t used = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    bool is_rest = false;
    for (const std::string& piece : pieces_of(std::string(text.substr(begin, end - begin)), room)) {
      const size_t space = used == 0 || is_rest ? 0 : 1;
      if (used > 0 && used + space + piece.size() > room) {
        out += "\n" + std::string(indent, ' ');
        used = 0;
      } else {
        out += std::string(space, ' ');
        used += space;
      }
      out += piece;
      used += piece.size();
      is_rest = true;
    }
    begin = end + 1;
  }
  return out + "\n";
}

/// The paragraphs of a text that has a newline after each but the last.
std::string paragraphs(std::string_view text, size_t columns) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += wrapped(text.substr(begin, end - begin), 0, columns);
    begin = end + 1;
  }
  return out;
}

/// A heading, which may end with a newline.
std::string heading(std::string_view text, const HelpStyle& style) {
  const bool is_line = text.ends_with('\n');
  if (is_line) text.remove_suffix(1);
  return painted(text, Paint::kBold, style.colour) + (is_line ? "\n" : "");
}

/// A line of two columns. If the left one is too wide, the right one begins on the next line.
std::string row(const std::string& left, std::string_view right, size_t left_width,
                const HelpStyle& style) {
  std::string line = std::string(kIndent, ' ') + left;
  if (right.empty()) return line + "\n";
  if (line.size() + kIndent > left_width) {
    line += "\n" + std::string(left_width, ' ');
  } else {
    line.resize(left_width, ' ');
  }
  return line + wrapped(right, left_width, style.columns);
}

std::string names_of(const FlagEntry& entry) {
  std::string names;
  for (const std::string& name : entry.names) names += (names.empty() ? "" : ", ") + name;
  return entry.takes_value ? cat(names, " ", entry.value.label) : names;
}

std::string usage_of(const CommandEntry& command) {
  const std::string operand = operand_text(command.operand);
  const std::string typed = as_typed(command.name);
  if (command.operand == Operand::kCommand) return cat(typed, " [FLAGS] ", operand);
  return cat(typed, operand.empty() ? "" : " ", operand, " [FLAGS]");
}

/// A command line that a shell takes: a line that is too long ends with a backslash. It begins with
/// `program`.
std::string shell_lines(const std::string& program, std::string_view words, size_t columns) {
  std::string out = std::string(kIndent, ' ') + program, part;
  size_t used = out.size();
  bool quoted = false;
  const auto add_part = [&] {
    if (used + 1 + part.size() + kIndent > columns) {
      out += " \\\n" + std::string(2 * kIndent, ' ') + part;
      used = 2 * kIndent + part.size();
    } else {
      out += " " + part;
      used += 1 + part.size();
    }
    part.clear();
  };
  for (const char c : words) {
    if (c == '"') quoted = !quoted;
    if (c == ' ' && !quoted)
      add_part();
    else
      part += c;
  }
  add_part();
  return out + "\n";
}

/// The words that come after the command's name.
std::string_view after_name(std::string_view words, std::string_view name) {
  return words.size() > name.size() ? words.substr(name.size() + 1) : "";
}

/// At most so many examples of the command, without a heading.
std::string examples_of(const CommandEntry& command, size_t most, const HelpStyle& style) {
  std::string text;
  for (size_t i = 0; i < std::min(most, command.examples.size()); ++i) {
    const Example& example = command.examples[i];
    const std::string margin(3 * kIndent, ' ');
    text += cat(
        shell_lines(as_typed(command.name), after_name(example.words, command.name), style.columns),
        margin, wrapped(example.what, margin.size(), style.columns));
  }
  return text;
}

std::string under_examples(const std::string& text, const HelpStyle& style) {
  return text.empty() ? "" : cat("\n", heading("Examples:", style), "\n", text);
}

/// A line for each command: how it is used, and its summary.
std::string list_of_commands(const std::vector<CommandEntry>& commands, const HelpStyle& style) {
  const auto usage = [](const CommandEntry& command) {
    return command.name + (command.operand == Operand::kNone ? "" : " ") +
           operand_text(command.operand);
  };
  size_t width = 0;
  for (const CommandEntry& command : commands) width = std::max(width, usage(command).size());
  width += 2 * kIndent;
  std::string text;
  for (const CommandEntry& command : commands)
    text += row(usage(command), command.summary, width, style);
  return text;
}

/// The headings of the groups, if they are many, and how to read what is below them.
std::string names_of_groups(const CommandEntry& command, const HelpStyle& style) {
  if (command.groups.size() < kManyGroups) return "";
  std::string names;
  for (const FlagGroup& group : command.groups)
    names += cat(names.empty() ? "" : ", ", group.heading);
  const std::string flags = "Flags below";
  return cat("\n", heading(flags + ":", style), " ",
             wrapped(names, flags.size() + kIndent, style.columns),
             wrapped("A value in parentheses, such as (64), is the default.", 0, style.columns));
}

/// A line for each exit code.
std::string exit_codes(const HelpStyle& style) {
  constexpr size_t kLeft = 6;
  std::string codes;
  for (const ExitEntry& entry : kExitEntries)
    codes += row(cat(entry.code), entry.meaning, kLeft, style);
  return codes;
}

}  // namespace

HelpStyle help_style_of(int fd) {
  return {columns_of(fd), wants_colour(fd)};
}

std::string help_text(const CommandEntry& command, const HelpStyle& style) {
  const size_t left = std::min(kMostLeft, style.columns * kLeftShare / kLeftOf);
  std::string text = paragraphs(command.description, style.columns);
  text += cat("\n", heading("Usage:", style), " ", usage_of(command), "\n");
  if (!command.operand_help.empty())
    text += "\n" + row(operand_text(command.operand), command.operand_help, left, style);
  text += under_examples(examples_of(command, command.examples.size(), style), style);
  text += names_of_groups(command, style);
  for (const FlagGroup& group : command.groups) {
    text += "\n" + heading(wrapped(group.heading + ":", kIndent, style.columns), style);
    for (const FlagEntry& entry : group.flags)
      text += row(names_of(entry), entry.help, left, style);
  }
  return text;
}

std::string help_text(const CommandFamily& family, const HelpStyle& style) {
  std::string examples;
  for (const CommandEntry& command : family.commands) examples += examples_of(command, 1, style);
  return cat(paragraphs(family.description, style.columns), "\n", heading("Usage:", style), " ",
             as_typed(family.name), " COMMAND [FLAGS]\n\n",
             list_of_commands(family.commands, style), under_examples(examples, style));
}

std::string help_text(const std::vector<CommandEntry>& commands, const HelpStyle& style) {
  std::string text = paragraphs(
      "Shoal: a small tensor-parallel inference server for language models.", style.columns);
  text += cat("\n", heading("Usage:", style), " shoal COMMAND ... ",
              wrapped("(shoal COMMAND --help lists its flags)", 25, style.columns), "\n");
  text += list_of_commands(commands, style);
  text += "\n  shoal --version [--json] (-V), shoal --help (-h)\n  " +
          wrapped("shoal help [COMMAND|--man|--json], shoal help --completion bash|zsh|fish",
                  kIndent, style.columns) +
          "\n";
  return text + heading("Exit codes:\n", style) + exit_codes(style);
}

}  // namespace shoal
