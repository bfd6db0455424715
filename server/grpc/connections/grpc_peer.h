#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

/// The other end of a connection. An IPv4 address is mapped into IPv6.
struct Peer {
  in6_addr address{};
  uint16_t port = 0;
  bool operator==(const Peer& other) const;
};

/// The peer of a connected socket; nullopt if it is not connected, or not over IP.
std::optional<Peer> peer_of(int socket);
/// The same from a name as gRPC writes it: "ipv4:127.0.0.1:40000", "ipv6:%5B::1%5D:40000".
std::optional<Peer> parse_peer(std::string_view name);
/// The address in such a name, without the port: "ipv4:127.0.0.1".
std::string address_of(std::string_view peer);

}  // namespace shoal

template <>
struct std::hash<shoal::Peer> {
  size_t operator()(const shoal::Peer& peer) const noexcept;
};
