#pragma once
#include "server/cli/flag_parser.h"
#include "server/cli/flags.h"

namespace shoal {

/// Registers the flags of shmtest, and sets those defaults that are not constants.
void add_shmtest_flags(FlagParser& parser, ShmtestFlags* flags);

/// Checks what concerns several flags at once, after they have been read. Error: INVALID_ARGUMENT
/// if there is no command, or if flags contradict each other.
Status check_shmtest_flags(const ShmtestFlags& flags);

}  // namespace shoal
