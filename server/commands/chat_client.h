#pragma once
#include <string>

#include "server/cli/client_flags.h"

namespace shoal {

/// The chats of `shoal client`: one answer to --messages, or with --chat a conversation that is
/// read from stdin, a message on each line. Speaks HTTP, because the server has the chat template.
/// api_key: empty for none. Returns main's exit code.
int run_chat_client(const ClientFlags& flags, const std::string& api_key);

}  // namespace shoal
