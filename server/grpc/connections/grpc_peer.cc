#include "server/grpc/connections/grpc_peer.h"

#include <arpa/inet.h>
#include <charconv>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>

namespace shoal {

namespace {

std::array<uint8_t, 16> mapped(const in_addr& address) {
  std::array<uint8_t, 16> out{};
  out[10] = out[11] = 0xFF;
  std::memcpy(&out[12], &address, sizeof address);
  return out;
}

/// gRPC writes the brackets and the % of an IPv6 address as %5B, %5D and %25. Takes the brackets
/// and the name of the interface away.
std::string_view bare_ipv6(std::string_view host) {
  constexpr std::string_view kOpen = "%5B", kClose = "%5D";
  if (host.starts_with(kOpen)) host.remove_prefix(kOpen.size());
  if (host.starts_with('[')) host.remove_prefix(1);
  if (host.ends_with(kClose)) host.remove_suffix(kClose.size());
  if (host.ends_with(']')) host.remove_suffix(1);
  return host.substr(0, host.find('%'));
}

}  // namespace

std::optional<Peer> peer_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  if (address.ss_family == AF_INET) {
    const auto* const ipv4 = reinterpret_cast<const sockaddr_in*>(&address);
    return Peer{mapped(ipv4->sin_addr), ntohs(ipv4->sin_port)};
  }
  if (address.ss_family != AF_INET6) return std::nullopt;
  const auto* const ipv6 = reinterpret_cast<const sockaddr_in6*>(&address);
  return Peer{std::to_array(ipv6->sin6_addr.s6_addr), ntohs(ipv6->sin6_port)};
}

std::optional<Peer> parse_peer(std::string_view name) {
  const size_t kind = name.find(':'), colon = name.rfind(':');
  if (kind == std::string_view::npos || kind == colon) return std::nullopt;
  Peer peer;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + colon + 1, last, peer.port);
  if (error != std::errc() || end != last) return std::nullopt;
  const std::string_view host = name.substr(kind + 1, colon - kind - 1);
  if (name.starts_with("ipv4:")) {
    in_addr address{};
    if (::inet_pton(AF_INET, std::string(host).c_str(), &address) != 1) return std::nullopt;
    peer.address = mapped(address);
    return peer;
  }
  const std::string bare(bare_ipv6(host));
  if (::inet_pton(AF_INET6, bare.c_str(), peer.address.data()) != 1) return std::nullopt;
  return peer;
}

std::string address_of(std::string_view peer) {
  return std::string(peer.substr(0, peer.rfind(':')));
}

}  // namespace shoal
