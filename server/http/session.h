#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/running_clock.h"
#include "server/http/routes.h"

namespace shoal {

/// The limits of a connection. Only time in which this process runs counts.
struct SessionLimits {
  size_t header_bytes = size_t{16} << 10;
  int header_ms = 10'000;       ///< from its first byte, or from the connection's begin
  int body_ms = 30'000;         ///< from when there is room for it
  int idle_ms = 75'000;         ///< between two requests
  int slow_reader_ms = 30'000;  ///< in which a client must take what was written
};

/// What one call came to, for the log and the metrics.
struct CallRecord {
  HttpRoute route = HttpRoute::kUnknown;
  std::string method = {};  ///< as the client sent it
  std::string path = {};    ///< as the client sent it, without the query, if it has no route
  int status = 0;           ///< 0: the client left before there was an answer
  double seconds = 0;
  size_t bytes = 0;  ///< of the answer
  CallSummary summary = {};
};

struct SessionContext {
  HttpRouting routing;
  SessionLimits limits;
  std::function<void(const CallRecord&)> done;
  /// As route_request() has it.
  std::function<bool()> has_place;
};

/// One connection, over TCP or a Unix socket. The event thread owns it and calls all of it, except
/// for what it gives to exchanges as an HttpChannel.
class Session {
 public:
  virtual ~Session() = default;
  virtual void start() = 0;
  /// Looks at the deadlines. Call it several times a second.
  virtual void tick(RunningClock::time_point now) = 0;
  /// Closes the connection; a call on it is cancelled. No effect if it is closed.
  virtual void close() = 0;
  /// Another request needs the place: the client hears that its body has stopped.
  virtual void evict() = 0;
  /// One request more is read at most: an idle connection is closed, and a busy one after its
  /// answer, or when it is no longer busy.
  virtual void stop() = 0;

  virtual bool closed() const = 0;
  virtual bool has_request() const = 0;  ///< its head was read, and its answer is not written yet
  /// It has a request, or for a moment: it is new, a request's head has begun to come, or the
  /// client has yet to take an answer's end.
  virtual bool busy() const = 0;
  virtual bool holds_place() const = 0;  ///< its answer is not made at once, as that of a probe
  virtual RunningClock::time_point since() const = 0;  ///< since when it is in its state
  virtual bool awaits_body() const = 0;                ///< there is room for it, and it is not here
  /// When the client last sent something, or was last asked to.
  virtual RunningClock::time_point last_read() const = 0;
};

}  // namespace shoal
