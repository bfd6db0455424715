#pragma once
#include <cstdint>

namespace shoal {

/// What one client may hold of `limit` as soon as another client needs a part: half of it.
constexpr auto fair_part(auto limit) {
  return limit / 2;
}

/// A proposal to evict one request of a client for a request of another client. All four values
/// count the same thing: requests, tokens or bytes.
struct Eviction {
  int64_t held = 0;    ///< by the client, with the request
  int64_t kept = 0;    ///< by it afterwards
  int64_t wanted = 0;  ///< by the other client: what it holds, and its new request
  int64_t limit = 0;   ///< that all clients may hold together
};

/// The rule of fair shares, wherever requests wait. A client may hold all that there is, as long as
/// no other one needs a part. If another one does, requests of a client that holds more than half
/// are evicted. Eviction stops before that client would have less than the other one then has,
/// because otherwise two clients would evict each other in turn.
constexpr bool is_fair(const Eviction& eviction) {
  return eviction.held > fair_part(eviction.limit) && eviction.kept >= eviction.wanted;
}

}  // namespace shoal
