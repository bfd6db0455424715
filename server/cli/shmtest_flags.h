#pragma once
#include "server/cli/configuration.h"
#include "server/cli/parse_command.h"

namespace shoal {

/// Parses the arguments of `shoal shmtest`. INVALID_ARGUMENT: a flag is wrong, flags contradict
/// each other, or the command to test is missing.
Result<CommandLine> parse_shmtest(Words words, LogOptions log, const Environment&);

}  // namespace shoal
