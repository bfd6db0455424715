#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "server/grpc/connections/connection_bytes.h"
#include "server/grpc/connections/grpc_peer.h"
#include "server/grpc/connections/leaky_bucket.h"
#include "server/intake/intake.h"

namespace shoal {

/// The connections that have been handed to gRPC, and how many more this process may take. It
/// closes one when descriptors become short, and those that connection_bytes.h names. gRPC owns the
/// descriptors and closes them at any time, so that a connection is known by the inode of its
/// socket. Thread-safe.
///
/// gRPC before 1.53.2 keeps a block of headers that has no end in memory, without any limit
/// (CVE-2023-33953), and nothing of ours sees it. So the bytes that a connection brings fill a
/// bucket (LeakyBucket). Within such a block no call can begin and no message can become whole:
/// either empties the bucket. A quarter of what the server sends counts against it, because a
/// client acknowledges that with bytes of its own. For the one that is closed because
/// memory is short every byte counts, however slowly it came and whatever the server sent
/// meanwhile.
class Connections {
 public:
  /// kept: the descriptors that the connections must leave free for the rest of the process.
  /// request_bytes: what requests may take together (Intake::Options::budget_bytes).
  /// memory: how many bytes the process has allocated.
  Connections(int64_t kept, size_t request_bytes, std::function<size_t()> memory = heap_bytes);

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

  /// What has come whole of what a call may bring.
  enum class Brought {
    kNothing,
    kOneOfMany,  ///< the call may bring further messages
    kAll,
  };
  /// A call on the connection with this peer has begun, or has ended. A connection with a live call
  /// is not idle. `peer` is as gRPC writes it: "ipv4:127.0.0.1:40000".
  void call_began(std::string_view peer);
  void call_ended(std::string_view peer, Brought so_far);
  /// A message of a call has come whole. Before its first one, a call keeps no connection from
  /// being idle.
  void message_came(std::string_view peer, Brought before, Brought now);
  /// True if the connection with this peer was taken beyond the limit, for health probes alone.
  bool over_limit(std::string_view peer);
  /// True if the connection with this peer has been closed here. When gRPC hears of that, it begins
  /// a call with the headers that have come of a block without end.
  bool has_closed(std::string_view peer) const;

  /// How many bytes the connection with this peer has brought so far; 0 if there is none.
  uint64_t received(std::string_view peer) const;

  /// Closes the connections that bring more bytes than calls and messages explain, and the heaviest
  /// one while memory is short. Returns after how long to call it again. Only one thread may call
  /// it.
  std::chrono::milliseconds close_endless();

  /// Closes all connections, because the server ends and clients do not read. Returns how many.
  int close_all();

  /// "3 calls are open on 2 connections". Does not block: if the lock is taken, the text says that
  /// the connections are in use.
  std::string describe() const;

  /// How many connections are known. Those that gRPC has just closed are among them.
  size_t known() const;

  /// The most descriptors that may be open after a connection has been accepted.
  int64_t most() const { return most_; }

 private:
  /// What a call may bring before a message of it is whole, with the heads of HTTP/2's frames.
  static constexpr double kMessageBytes = kMaxRequestBytes + (1 << 17);

  struct Connection {
    int descriptor = -1;
    ino_t inode = 0;
    std::optional<Peer> peer;
    Clock::time_point accepted;
    bool over_limit = false;
    bool alone = true;  // no other open connection has the same peer, at another address of ours
    // The state at the last look: the bytes of the connection, and the counts of its calls.
    uint64_t received = 0, sent = 0, progress = 0;
    double given_up = 0;       // when its bucket was last emptied
    double brought = 0;        // all that has come since then
    LeakyBucket pending = {};  // the same, less what time and answers explain
    double beyond = 0;         // of that, what no call explained at the last look
    std::optional<Clock::time_point> closed =
        {};  // when it was shut down; gRPC closes it soon after
  };
  struct Calls {
    int live = 0, without_message = 0;
    int awaiting = 0;       // those that have not brought all
    uint64_t progress = 0;  // calls that have begun, and messages that have become whole
    double given_up = 0;    // the most bytes that came of messages that will never be whole
    Clock::time_point last_end;
    bool forgotten = false;  // its connection is gone
  };
  /// How often something happened since the last line about it.
  struct Unlogged {
    int count = 0;
    std::optional<Clock::time_point> logged;
  };
  bool room();
  void forget_closed();
  void count();
  const Calls* calls_of(const Connection& connection) const;
  const Connection* latest(std::string_view peer, bool open) const;
  Clock::time_point idle_since(const Connection& connection) const;
  bool has_call(const Connection& connection) const;
  bool look_at(Connection& connection, RunningClock::time_point now) const;
  double beyond_calls(const Connection& connection) const;
  void close(Connection& connection, const Fd& socket, Clock::time_point now) const;
  bool being_closed(Clock::time_point now) const;
  bool close_longest_idle(Clock::time_point now, bool over_limit);
  void close_unexplained(Connection& connection);
  static bool is_due(Unlogged* unlogged, Clock::time_point now);
  void log_closed(const Connection& connection, Clock::time_point now);

  const int64_t below_;  // the limit on descriptors
  const int64_t most_;
  const std::function<size_t()> memory_;
  const size_t most_memory_;
  mutable std::mutex mutex_;
  std::vector<Connection> connections_;
  std::map<Peer, Calls> calls_;
  int64_t open_ = 0;  // descriptors of this process when they were last counted, and those since
  Unlogged idle_closed_, endless_closed_;
};

/// How many descriptors with a number below `below` this process has open.
int64_t open_descriptors(int64_t below);

}  // namespace shoal
