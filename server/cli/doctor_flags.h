#pragma once
#include "server/cli/configuration.h"
#include "server/cli/parse_command.h"

namespace shoal {

/// Reads the words after `doctor`. Error: INVALID_ARGUMENT.
Result<CommandLine> parse_doctor(Words words, LogOptions log, const Environment&);

/// "shoal doctor --clean-stale", as this program is called.
std::string clean_stale_command();

}  // namespace shoal
