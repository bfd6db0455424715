#pragma once
#include <cstddef>
#include <vector>

#include "server/grpc/grpc_peer.h"

namespace shoal {

/// What a connection has brought since a call began on it or a message of it became whole.
struct PendingBytes {
  double all = 0;
  double beyond = 0;  ///< what cannot be part of a message of its calls
  Peer peer;
};

/// Which connections bring too much, by their places in the list: one with more than 1 MiB beyond
/// its calls; those with most beyond them as long as all together have more than 32 MiB of that;
/// and as long as all of them bring more than 512 MiB in any way, the fullest of the address that
/// brings most.
std::vector<size_t> too_much(const std::vector<PendingBytes>& connections);

}  // namespace shoal
