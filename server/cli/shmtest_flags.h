#pragma once
#include "server/cli/configuration.h"
#include "server/cli/parse_command.h"

namespace shoal {

/// Reads the words after `shmtest`. Error: INVALID_ARGUMENT, also if there is no command, or if
/// flags contradict each other.
Result<CommandLine> parse_shmtest(Words words, LogOptions log, const Environment&);

}  // namespace shoal
