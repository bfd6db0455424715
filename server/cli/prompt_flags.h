#pragma once
#include "server/cli/flags.h"

namespace shoal {

// What generate and logits read and write: prompts, files of them, and what becomes of each. Each
// check is INVALID_ARGUMENT if the inputs are several, or if they do not fit the outputs.

void add_generate_io_flags(FlagParser& parser, GenerateFlags* flags);
Status check_generate_flags(const GenerateFlags& flags);

void add_logits_io_flags(FlagParser& parser, LogitsFlags* flags);
Status check_logits_flags(const LogitsFlags& flags);

}  // namespace shoal
