#include "server/grpc/connection_bytes.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace shoal {

namespace {

/// What one connection, and all of them together, may bring beyond what calls explain.
constexpr double kMostBeyond = 1 << 20, kMostTogether = 32 << 20;
/// What all connections together may bring, explained or not, before something becomes whole.
constexpr double kMostPending = 512 << 20;

Peer address_alone(Peer peer) {
  peer.port = 0;
  return peer;
}

}  // namespace

std::vector<size_t> too_much(const std::vector<PendingBytes>& connections) {
  std::vector<size_t> left(connections.size()), closed;
  std::iota(left.begin(), left.end(), size_t{0});
  double beyond = 0, all = 0;
  std::unordered_map<Peer, double> of_address;
  for (const PendingBytes& one : connections) {
    beyond += one.beyond;
    all += one.all;
    of_address[address_alone(one.peer)] += one.all;
  }
  const auto close = [&](size_t place) {
    const PendingBytes& one = connections[left[place]];
    beyond -= one.beyond;
    all -= one.all;
    of_address[address_alone(one.peer)] -= one.all;
    closed.push_back(left[place]);
    left.erase(left.begin() + static_cast<ptrdiff_t>(place));
  };
  std::sort(left.begin(), left.end(),
            [&](size_t a, size_t b) { return connections[a].beyond > connections[b].beyond; });
  while (!left.empty() &&
         (connections[left.front()].beyond > kMostBeyond || beyond > kMostTogether))
    close(0);
  const auto weight = [&](size_t i) {
    const PendingBytes& one = connections[i];
    return std::pair(of_address[address_alone(one.peer)], one.all);
  };
  while (!left.empty() && all > kMostPending) {
    const auto heaviest = std::max_element(
        left.begin(), left.end(), [&](size_t a, size_t b) { return weight(a) < weight(b); });
    close(static_cast<size_t>(heaviest - left.begin()));
  }
  return closed;
}

}  // namespace shoal
