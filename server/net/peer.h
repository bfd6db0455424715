#pragma once
#include <cstdint>
#include <string>
#include <sys/socket.h>

namespace shoal {

/// A client's address without its port, as gRPC writes it: "ipv4:127.0.0.1", "ipv6:%5B::1%5D", or
/// "unix:" for a Unix socket. So one client has one share of the queue, whichever front it uses.
std::string client_name(const sockaddr_storage& peer);

/// Raises the soft limit of descriptors to the hard one and returns it. Servers with many
/// connections need more than the usual 1,024.
int64_t raise_descriptor_limit();

}  // namespace shoal
