#pragma once
#include <grpcpp/channel.h>
#include <memory>

#include "server/cli/flags.h"

namespace shoal {

/// A channel to the server of the flags. It is encrypted if the server is named with https://, or
/// if the flags say who issues its certificate. INVALID_ARGUMENT, naming the flag: --server is no
/// address with a port, or a file cannot be read.
Result<std::shared_ptr<grpc::Channel>> open_client_channel(const ClientFlags& flags);

}  // namespace shoal
