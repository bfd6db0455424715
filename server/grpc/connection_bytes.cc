#include "server/grpc/connection_bytes.h"

#include <algorithm>
#include <cstdint>
#include <malloc.h>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace shoal {

namespace {

/// What one connection, and all of them together, may bring beyond what calls explain.
constexpr double kMostBeyond = 1 << 20, kMostTogether = 32 << 20;
/// What all connections together may bring whatever the memory is. A short header takes many times
/// as much memory as on the wire.
constexpr double kNeverHeavy = 16 << 20;

/// Whose connection it is: an IPv4 address, or a network of IPv6 with 64 bits, of which one client
/// may have every address.
Peer client_of(Peer peer) {
  peer.port = 0;
  if (!IN6_IS_ADDR_V4MAPPED(&peer.address)) std::fill_n(peer.address.s6_addr + 8, 8, uint8_t{0});
  return peer;
}

}  // namespace

std::vector<size_t> too_much(const std::vector<PendingBytes>& connections) {
  std::vector<size_t> fullest_first(connections.size()), closed;
  std::iota(fullest_first.begin(), fullest_first.end(), size_t{0});
  std::sort(fullest_first.begin(), fullest_first.end(),
            [&](size_t a, size_t b) { return connections[a].beyond > connections[b].beyond; });
  double together = 0;
  for (const PendingBytes& one : connections) together += one.beyond;
  for (const size_t i : fullest_first) {
    const double beyond = connections[i].beyond;
    if (beyond <= kMostBeyond && together <= kMostTogether) break;
    together -= beyond;
    closed.push_back(i);
  }
  return closed;
}

std::optional<size_t> heaviest(const std::vector<PendingBytes>& connections) {
  double together = 0;
  std::unordered_map<Peer, double> of_client;
  for (const PendingBytes& one : connections) {
    together += one.all;
    of_client[client_of(one.peer)] += one.all;
  }
  if (together < kNeverHeavy) return std::nullopt;
  const auto weight = [&](const PendingBytes& one) {
    return std::pair(of_client[client_of(one.peer)], one.all);
  };
  const auto found = std::max_element(
      connections.begin(), connections.end(),
      [&](const PendingBytes& a, const PendingBytes& b) { return weight(a) < weight(b); });
  return static_cast<size_t>(found - connections.begin());
}

size_t most_more_memory(size_t request_bytes) {
  constexpr size_t kOfGrpc = size_t{512} << 20, kLeast = size_t{256} << 20;
  return kOfGrpc + 2 * std::max(request_bytes, kLeast);
}

size_t heap_bytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace shoal
