#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

/// The other end of a connection. An IPv4 address is mapped into IPv6.
struct Peer {
  std::array<uint8_t, 16> address{};
  uint16_t port = 0;
  auto operator<=>(const Peer&) const = default;
};

/// The peer of a connected socket; nullopt if it is not connected, or not over IP.
std::optional<Peer> peer_of(int socket);
/// The same from a name as gRPC writes it: "ipv4:127.0.0.1:40000", "ipv6:%5B::1%5D:40000".
std::optional<Peer> parse_peer(std::string_view name);
/// The address in such a name, without the port: "ipv4:127.0.0.1".
std::string address_of(std::string_view peer);

}  // namespace shoal
