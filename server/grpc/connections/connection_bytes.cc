#include "server/grpc/connections/connection_bytes.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <malloc.h>
#include <map>
#include <netinet/in.h>
#include <numeric>
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
  const auto address = std::bit_cast<in6_addr>(peer.address);
  if (!IN6_IS_ADDR_V4MAPPED(&address)) std::fill_n(peer.address.begin() + 8, 8, uint8_t{0});
  return peer;
}

/// What the connections of each client have brought together.
class Sums {
 public:
  Sums(const std::vector<PendingBytes>& connections, double PendingBytes::*bytes) : bytes_(bytes) {
    for (const PendingBytes& one : connections) {
      together_ += one.*bytes;
      of_client_[client_of(one.peer)] += one.*bytes;
    }
  }
  double together() const { return together_; }
  /// By this, the fullest connection of the client that has brought most comes last.
  std::pair<double, double> weight(const PendingBytes& one) const {
    return {of_client_.at(client_of(one.peer)), one.*bytes_};
  }

 private:
  double PendingBytes::*const bytes_;
  double together_ = 0;
  std::map<Peer, double> of_client_;
};

}  // namespace

std::vector<size_t> too_much(const std::vector<PendingBytes>& connections) {
  std::vector<size_t> first_to_close(connections.size()), closed;
  std::iota(first_to_close.begin(), first_to_close.end(), size_t{0});
  const Sums sums(connections, &PendingBytes::beyond);
  const auto rank = [&](size_t i) {
    const PendingBytes& one = connections[i];
    return std::pair(one.beyond > kMostBeyond, sums.weight(one));
  };
  std::sort(first_to_close.begin(), first_to_close.end(),
            [&](size_t a, size_t b) { return rank(a) > rank(b); });
  double together = sums.together();
  for (const size_t i : first_to_close) {
    const double beyond = connections[i].beyond;
    if (beyond <= kMostBeyond && together <= kMostTogether) break;
    if (beyond == 0) continue;
    together -= beyond;
    closed.push_back(i);
  }
  return closed;
}

std::optional<size_t> heaviest(const std::vector<PendingBytes>& connections) {
  const Sums sums(connections, &PendingBytes::all);
  if (sums.together() < kNeverHeavy) return std::nullopt;
  const auto found = std::max_element(connections.begin(), connections.end(),
                                      [&](const PendingBytes& a, const PendingBytes& b) {
                                        return sums.weight(a) < sums.weight(b);
                                      });
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
