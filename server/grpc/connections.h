#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <unordered_map>
#include <vector>

#include "runtime/base/deadline.h"

namespace shoal {

/// The connections that have been handed to gRPC, and how many more this process may take. It
/// decides which of them is closed when descriptors become short. gRPC owns the descriptors and
/// closes them at any time, so that a connection is known by the inode of its socket. Thread-safe.
class Connections {
 public:
  /// kept: the descriptors that the connections must leave free for the rest of the process.
  explicit Connections(int64_t kept);

  enum class Room {
    kFree,  ///< there is room for one more
    kSoon,  ///< an idle connection is being closed; ask again in a few milliseconds
    kNone,  ///< every connection is in use; ask again later
  };
  /// Whether one more connection may be accepted. If descriptors are short, it closes the one that
  /// has been idle for longest. A few more than fit are taken beyond the limit, so that a health
  /// probe always gets in; over_limit() tells them apart. Call it when a client waits.
  Room make_room();

  /// Records a connection that is about to be handed to gRPC.
  void add(int descriptor);

  /// Looks how many descriptors are open, because something else has taken some.
  void count_again();

  /// A call on the connection with this peer has begun, or has ended. A connection with a live call
  /// is not idle. `peer` is as gRPC writes it: "ipv4:127.0.0.1:40000".
  void call_began(std::string_view peer);
  void call_ended(std::string_view peer);
  /// True if the connection with this peer was taken beyond the limit, for health probes alone.
  bool over_limit(std::string_view peer);

  /// "3 calls are open on 2 connections". Does not block: it says so if they are in use.
  std::string describe() const;

  /// The most descriptors that may be open after a connection has been accepted.
  int64_t most() const { return most_; }

 private:
  struct Connection {
    int descriptor = -1;
    ino_t inode = 0;
    uint16_t port = 0;  // the peer's
    Clock::time_point accepted;
    bool over_limit = false;
    std::optional<Clock::time_point> closed;  // when it was shut down; gRPC closes it soon after
  };
  struct Calls {
    int live = 0;
    Clock::time_point last_end;
  };
  bool room();
  void forget_closed();
  void count();
  Clock::time_point idle_since(const Connection& connection) const;
  bool has_call(const Connection& connection) const;
  bool being_closed(Clock::time_point now) const;
  bool close_longest_idle(Clock::time_point now, bool over_limit);
  void log_closed(const Connection& connection, Clock::time_point now);

  const int64_t below_;  // the limit on descriptors
  const int64_t most_;
  mutable std::mutex mutex_;
  std::vector<Connection> connections_;
  // By the peer's port. Connections from several hosts may share one; then a call on one of them
  // protects all, which does no harm.
  std::unordered_map<uint16_t, Calls> calls_;
  int64_t open_ = 0;  // descriptors of this process when they were last counted, and those since
  int closed_since_log_ = 0;
  std::optional<Clock::time_point> logged_;
};

/// The address in a peer as gRPC writes it, without the port: "ipv4:127.0.0.1".
std::string address_of(std::string_view peer);

/// The descriptors, of those below `below`, that this process has open.
int64_t open_descriptors(int64_t below);

}  // namespace shoal
