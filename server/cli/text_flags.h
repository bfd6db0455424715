#pragma once
#include "server/cli/flags.h"

namespace shoal {

// The flags of the commands between text and tokens: tokenize, detokenize and render. Each check is
// INVALID_ARGUMENT if the inputs are none or several.

void add_tokenize_flags(FlagParser& parser, TokenizeFlags* flags);
Status check_tokenize_flags(const TokenizeFlags& flags);

void add_detokenize_flags(FlagParser& parser, DetokenizeFlags* flags);
Status check_detokenize_flags(const DetokenizeFlags& flags);

void add_render_flags(FlagParser& parser, RenderFlags* flags);
Status check_render_flags(const RenderFlags& flags);

}  // namespace shoal
