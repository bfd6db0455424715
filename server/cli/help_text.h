#pragma once
#include <string>
#include <vector>

#include "runtime/base/terminal.h"
#include "server/cli/command_table.h"

namespace shoal {

/// How the help is laid out for its reader.
struct HelpStyle {
  size_t columns = kUsualColumns;
  bool colour = false;  ///< paint the headings
};

/// The style for what reads this descriptor.
HelpStyle help_style_of(int fd);

/// The text of shoal COMMAND --help: its use and examples first, and the flags below. Lines are
/// broken between words to fit the columns, and what goes on in the next line is indented like what
/// it explains.
std::string help_text(const CommandEntry& command, const HelpStyle& style = {});

/// The text of shoal FAMILY --help: its commands, and the first example of each.
std::string help_text(const CommandFamily& family, const HelpStyle& style = {});

/// The text of shoal --help.
std::string help_text(const std::vector<CommandEntry>& commands, const HelpStyle& style = {});

}  // namespace shoal
