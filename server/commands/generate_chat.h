#pragma once
#include "server/cli/exit_code.h"
#include "server/cli/flags.h"

namespace shoal {

/// `generate --chat`: the conversation of `client --chat`, with ranks of this process instead of a
/// server. The value is the exit code.
Staged<int> generate_chat(GenerateFlags flags);

}  // namespace shoal
