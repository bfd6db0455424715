#pragma once
#include "server/cli/flag_parser.h"
#include "server/cli/flags.h"

namespace shoal {

/// Registers the flags of shmtest, and sets the defaults that are no constants.
void add_shmtest_flags(FlagParser& parser, ShmtestFlags* flags);

/// What spans several of them, once they are read. INVALID_ARGUMENT: no command, or flags that
/// contradict each other.
Status check_shmtest_flags(const ShmtestFlags& flags);

}  // namespace shoal
