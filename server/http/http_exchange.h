#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/http/http_message.h"

namespace shoal {

/// A connection, as the call that it carries sees it. May be called from any thread; has no effect
/// once the call is over.
class HttpChannel {
 public:
  virtual ~HttpChannel() = default;
  /// There is room for the request's body: read it.
  virtual void read_body() = 0;
  /// HttpExchange::next() may have something.
  virtual void wake() = 0;
  /// How many bytes the connection has brought so far.
  virtual uint64_t received() const = 0;
};

/// A call whose answer takes other threads, as its connection sees it. Only the event thread calls
/// it. The connection calls start() first and over() last.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void start(std::shared_ptr<HttpChannel> channel) = 0;
  /// The body has arrived.
  virtual void body(std::string bytes) = 0;
  /// The next part of the answer, if there is one. Called when wake() was, and after a part has
  /// been written.
  virtual std::optional<HttpPart> next() = 0;
  /// A part that says only that the connection lives; nothing if the answer is not a stream, or is
  /// not known to be one yet. Called if nothing has been written for a while.
  virtual std::optional<HttpPart> keep_alive() = 0;
  /// About how many bytes of the answer wait to be taken by next().
  virtual size_t unread_bytes() const { return 0; }
  /// The body did not come whole: answers with this instead.
  virtual void fail_body(HttpResponse why) = 0;
  /// The client has gone, or does not read its answer.
  virtual void client_gone() = 0;
  virtual void over() = 0;
  /// What came of it, for the log. Called before over().
  virtual CallSummary summary() const { return {}; }
};

}  // namespace shoal
