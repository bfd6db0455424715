#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "server/grpc/connections/grpc_peer.h"

namespace shoal {

/// What a connection has brought since a call began on it or a message of it became whole.
struct PendingBytes {
  double all = 0;     ///< every byte: nothing explains the memory that it may take
  double beyond = 0;  ///< what cannot be part of a message of its calls
  Peer peer;
};

/// Which connections bring too much, by their places in the list: one with more than 1 MiB beyond
/// its calls, and, as long as all together have more than 32 MiB of that, the fullest of the client
/// that has most. A client is an IPv4 address or a network of IPv6 with 64 bits.
std::vector<size_t> too_much(const std::vector<PendingBytes>& connections);

/// How much more memory than at its start the process may have, in bytes, before heaviest() is
/// closed. gRPC holds at most 512 MiB of messages. Requests take at most request_bytes, and the
/// same number of bytes again while they are worked on. With request_bytes of 256 MiB this is 1 GiB
/// together, and the result is never less. With few requests the rest is for answers and for memory
/// that nobody counts.
size_t most_more_memory(size_t request_bytes);

/// Which connection gives back most memory if it is closed: the fullest of the client that brings
/// most. nullopt if all together bring
/// less than 16 MiB, because the memory is then not theirs.
std::optional<size_t> heaviest(const std::vector<PendingBytes>& connections);

/// The memory that this process has allocated and not freed, in bytes, as glibc's malloc counts it.
/// What the kernel counts (RssAnon) has also what was freed and not given back yet, for seconds, so
/// that after the fullest connection others would be closed in vain.
size_t heap_bytes();

}  // namespace shoal
