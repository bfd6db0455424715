#pragma once
#include <functional>
#include <span>
#include <string>

#include "server/cli/flag_parser.h"
#include "server/cli/flags.h"

namespace shoal {

using Words = std::span<const std::string>;

/// Reads the words. If they ask for help, the result is the help instead of the command.
template <typename Flags>
Result<CommandLine> finish(FlagParser& parser, Words words, const LogOptions& log,
                           const Flags& flags, const std::function<Status()>& check = nullptr) {
  SHOAL_ASSIGN_OR_RETURN(const bool help, parser.parse(words));
  if (help) return CommandLine{log, PrintHelp{{parser.entry()}}};
  if (check != nullptr) SHOAL_RETURN_IF_ERROR(check());
  return CommandLine{log, flags};
}

}  // namespace shoal
