#pragma once
#include "server/cli/flag_parser.h"
#include "server/cli/flags.h"

namespace shoal {

/// Registers all flags of `shoal serve` but those of the log.
void add_serve_flags(FlagParser& parser, ServeFlags* flags);

/// Call it once all flags have been read: it settles what depends on several of them. Error:
/// INVALID_ARGUMENT.
Status check_serve_flags(ServeFlags* flags);

}  // namespace shoal
