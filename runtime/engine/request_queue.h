#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace shoal {

/// The limits of the queue.
struct QueueLimits {
  int64_t requests = std::numeric_limits<int64_t>::max();  ///< that run or wait, together
  /// Tokens of prompts that are still to be computed. A request that is the only one with such
  /// tokens is not measured by this, because it could never be served otherwise.
  int64_t tokens = std::numeric_limits<int64_t>::max();
  int64_t bytes = std::numeric_limits<int64_t>::max();       ///< that waiting requests keep
  double seconds = std::numeric_limits<double>::infinity();  ///< until the first step
};
enum class QueueLimit { kRequests, kTokens, kBytes };

/// A request that has not been in a step yet.
struct QueuedRequest {
  std::string client;  ///< who sent it
  int64_t tokens = 0;  ///< of its prompt
  int64_t bytes = 0;   ///< kept of it
  double since_s = 0;  ///< when it came, by the caller's clock
};

/// Knows the requests that wait for their first step and which client sent each. When there is no
/// room for another request, it decides which of the waiting ones are evicted. Pure, and not
/// thread-safe.
///
/// When another client's request finds a limit reached, the latest requests of the client that
/// holds the most of what is short are evicted for it (is_fair). If several limits are reached,
/// each has its own such client. Their priorities do not matter. A request that has been in a step
/// is never evicted.
class RequestQueue {
 public:
  explicit RequestQueue(const QueueLimits& limits) : limits_(limits) {}

  /// What the engine has besides the waiting requests.
  struct Engine {
    int64_t running = 0;        ///< requests that have been in a step and have not ended
    int64_t prompt_tokens = 0;  ///< of all prompts that run or wait, still to be computed
  };
  struct Room {
    bool granted = false;
    QueueLimit reached{};              ///< if not granted
    std::vector<uint64_t> evict = {};  ///< the ids that have to be removed first, if granted
  };
  /// Whether the request may be added.
  Room room_for(const QueuedRequest& request, const Engine& engine) const;

  /// The requests that may be evicted for this client when the queue has reached a length that is
  /// not one of the limits: the latest ones of the client that holds the most, as many as it has
  /// beyond half of that length.
  std::vector<uint64_t> surplus_beside(const std::string& client, int64_t length) const;

  /// Precondition: id is greater than all before it.
  void add(uint64_t id, QueuedRequest request);
  /// For a request that has been in its first step, or has ended. Returns false for one that does
  /// not wait.
  bool remove(uint64_t id);

  /// nullptr for one that does not wait.
  const QueuedRequest* find(uint64_t id) const;
  /// The ids that have waited longer than the limit at this time.
  std::vector<uint64_t> late(double now_s) const;

  int64_t size() const { return all_.requests; }
  int64_t bytes() const { return all_.bytes; }
  const QueueLimits& limits() const { return limits_; }

 private:
  struct Held {
    int64_t requests = 0, tokens = 0, bytes = 0;
    Held operator+(const Held& other) const {
      return {requests + other.requests, tokens + other.tokens, bytes + other.bytes};
    }
    Held operator-(const Held& other) const {
      return {requests - other.requests, tokens - other.tokens, bytes - other.bytes};
    }
  };
  using HeldBy = std::unordered_map<std::string, Held>;
  /// Requests that are to be evicted.
  struct Evicted {
    struct Part {
      Held held = {};
      uint64_t from = std::numeric_limits<uint64_t>::max();  // the client's ids from here on
    };
    Held left = {};  // of all that run or wait, without them
    std::vector<uint64_t> ids = {};
    std::unordered_map<std::string, Part> parts = {};  // by client
  };
  static Held of(const QueuedRequest& request) { return {1, request.tokens, request.bytes}; }
  static int64_t amount(const Held& held, QueueLimit limit);
  HeldBy::const_iterator heaviest(QueueLimit limit, const Evicted& evicted) const;
  bool make_room(QueueLimit limit, const QueuedRequest& request, const Engine& engine,
                 Evicted* evicted) const;
  void spare_needless(const QueuedRequest& request, const Engine& engine, Evicted* evicted) const;
  Held held_by(const std::string& client) const;
  std::optional<QueueLimit> reached(const QueuedRequest& request, const Engine& engine,
                                    const Held& left) const;

  const QueueLimits limits_;
  std::map<uint64_t, QueuedRequest> waiting_;
  HeldBy held_;  // by the clients that have something here
  Held all_;     // of them together
};

}  // namespace shoal
